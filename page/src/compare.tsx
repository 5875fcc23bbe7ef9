// Several runs beside each other: only what differs in their configurations, and their curves in the same charts.

import { useMemo } from "preact/hooks";
import { get, type Comparison, type Entry, type Plain } from "./api";
import { Charts, ChartTools } from "./charts";
import { number, shown } from "./format";
import * as runs from "./runs";
import { Empty, lineColour, Loading, Name, Problem, Status, theme, useAnswer } from "./ui";
import { carried, choose, here, link } from "./url";

const MOST = 30;

export function ComparePage() {
  theme.value;
  const ids = (here.value.query.get("ids") ?? "").split(",").filter(Boolean);
  const shownIds = ids.slice(0, MOST);
  const entries = shownIds
    .map((id) => runs.entry(id))
    .filter((each): each is Entry => !!each && each.kind !== "search");
  const key = entries.map((each) => each.id).join(",");
  const [answer, error] = useAnswer<Comparison | null>(
    (signal) => (key.includes(",") ? get("compare", { ids: key }, signal) : Promise.resolve(null)),
    [key],
  );
  const curves = useMemo(() => key.split(",").map((run, place) => ({ run, place })), [key]);
  const first = runs.metric.value;
  const metrics = runs.metricsOf(entries);
  const names = [...metrics.filter((name) => name === first), ...metrics.filter((name) => name !== first)];
  if (!runs.loaded.value) return <Loading what="the runs" />;
  return (
    <div class="page">
      <header class="head">
        <div class="crumbs">
          <a href={link("/", { sel: key, ...carried("metric") })}>Runs</a>
        </div>
        <div class="headline">
          <h1>Compare {number(entries.length)} runs</h1>
        </div>
      </header>
      {entries.length < 2 ? <Empty>Select at least two runs in the list, then choose Compare.</Empty> : null}
      {ids.length > MOST ? (
        <div class="warning">
          Only the first {MOST} of {number(ids.length)} runs are shown.
        </div>
      ) : null}
      {error ? <Problem error={error} /> : null}
      {answer ? <Table entries={entries} answer={answer} metrics={names} /> : null}
      {entries.length >= 2 ? (
        <>
          <ChartTools />
          <Charts metrics={names} curves={curves} />
        </>
      ) : null}
    </div>
  );
}

function Table({ entries, answer, metrics }: { entries: Entry[]; answer: Comparison; metrics: string[] }) {
  const keys = Object.keys(answer.differing);
  const drop = (id: string) =>
    choose({
      ids: entries
        .map((each) => each.id)
        .filter((each) => each !== id)
        .join(","),
    });
  return (
    <div class="scroll compare">
      <table class="plain">
        <thead>
          <tr>
            <th class="corner" />
            {entries.map((each, place) => (
              <th key={each.id}>
                <i class="swatch" style={{ background: lineColour(place) }} />
                <a href={link(runs.pageOf(each), carried())}>
                  <Name text={each.kind === "trial" ? runs.title(each) : `${each.name} ${each.trial_id}`} />
                </a>
                <button
                  type="button"
                  class="small plain"
                  aria-label={`Leave out ${runs.title(each)}`}
                  onClick={() => drop(each.id)}
                >
                  ×
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <tr>
            <th scope="row">Status</th>
            {entries.map((each) => (
              <td key={each.id}>
                <Status status={each.status} />
              </td>
            ))}
          </tr>
          <tr>
            <th scope="row">Iteration</th>
            {entries.map((each) => (
              <td key={each.id}>{number(each.iteration)}</td>
            ))}
          </tr>
          {metrics.slice(0, 8).map((name) => (
            <tr key={name} class="metric">
              <th scope="row">
                <Name text={name} />
              </th>
              {entries.map((each) => (
                <td key={each.id}>{number(each.metrics[name])}</td>
              ))}
            </tr>
          ))}
          <tr class="section">
            <th scope="row" colSpan={entries.length + 1}>
              {keys.length ? "What differs in the configuration" : "The configurations are the same"}
              <span class="faint">
                {" "}
                {number(answer.same)} {answer.same === 1 ? "key is" : "keys are"} the same
              </span>
            </th>
          </tr>
          {keys.map((key) => (
            <tr key={key}>
              <th scope="row">
                <Name text={key} />
              </th>
              {entries.map((each) => (
                <td key={each.id}>{cell(answer.differing[key]![each.id])}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const cell = (value: Plain | undefined) =>
  value === undefined ? <span class="faint">not set</span> : <Name text={shown(value)} />;
