// The page of a search: how good it has become, which parameters matter, when trials ran, and all of them in a table.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, type Entry, type SearchFacts } from "./api";
import { Charts, ChartTools } from "./charts";
import { counted, duration, number } from "./format";
import { useKeys } from "./keys";
import { Filters } from "./filters";
import { order, RunTable } from "./list";
import { brushes, dimension, Parallel, within, type Dimension } from "./parallel";
import { axisLook, shortTimes, ticks, TIME_STEPS, uPlot, yRoom } from "./plot";
import { Head } from "./run";
import * as runs from "./runs";
import { Timeline } from "./timeline";
import { colour, Command, Empty, Loading, Name, Problem, Tabs, theme, useAnswer, useSize, useSlowly } from "./ui";
import { carried, choose, chosen, columns, go, link, tab } from "./url";

const TABS: [string, string][] = [
  ["overview", "Overview"],
  ["trials", "Trials"],
  ["charts", "Charts"],
];
const MOST_AXES = 12;
/** With so many trials, the plots are drawn again only every few seconds. */
const MANY = 1000;
const SLOWLY_MS = 3000;
const SOON_MS = 2000;

export function SearchPage({ id }: { id: string }) {
  const entry = runs.entry(id);
  if (!entry)
    return runs.loaded.value ? (
      <Empty>There is no search with this address. It may have been removed.</Empty>
    ) : (
      <Loading what="the search" />
    );
  return <Known entry={entry} />;
}

function Known({ entry }: { entry: Entry }) {
  const now = runs.trialsOf(entry.id);
  const trials = useSlowly(now, now.length > MANY ? SLOWLY_MS : 0);
  const done = trials.reduce((sum, each) => sum + (each.alive ? 0 : 1), 0);
  // Importance changes slowly: it is computed again when a tenth more trials have ended.
  const when = done < 20 ? done : Math.floor(Math.log(done) / Math.log(1.1));
  const [facts, error, again] = useAnswer<SearchFacts>(
    (signal) => get(`search/${entry.id}`, {}, signal),
    [entry.id, when, entry.status],
  );
  useEffect(() => {
    if (!facts?.pending) return;
    const timer = setTimeout(again, SOON_MS);
    return () => clearTimeout(timer);
  }, [facts]);
  const active = TABS.some(([name]) => name === tab.value) ? tab.value : "overview";
  const show = (name: string) => choose({ tab: name === "overview" ? "" : name });
  useKeys(Object.fromEntries(TABS.map(([name], k) => [String(k + 1), () => show(name)])));
  const axes = useMemo(() => axesOf(entry, trials, facts), [entry, trials, facts]);
  return (
    <div class={`page ${active === "overview" ? "" : "full"}`}>
      <Head entry={entry} />
      <Tabs
        names={TABS.map(([name, label]) =>
          name === "trials" ? [name, `${label} ${number(trials.length)}`] : [name, label],
        )}
        active={active}
        choose={show}
      />
      {error ? <Problem error={error} /> : null}
      {active === "overview" ? <Overview entry={entry} trials={trials} facts={facts} axes={axes} /> : null}
      {active === "trials" ? <Trials entry={entry} trials={trials} axes={axes} /> : null}
      {active === "charts" ? <Curves entry={entry} /> : null}
    </div>
  );
}

/** Parameters, the important ones first, then the metric. */
function axesOf(entry: Entry, trials: Entry[], facts: SearchFacts | null): Dimension[] {
  const weight = facts?.importance ?? {};
  const names = runs.paramsOf(trials).sort((a, b) => (weight[b] ?? 0) - (weight[a] ?? 0));
  const all = names
    .slice(0, MOST_AXES)
    .map((name) => dimension(name, trials, (trial) => trial.params?.[name], facts?.space?.[name]));
  for (const metric of [entry.metric].flat())
    if (metric) all.push(dimension(metric, trials, (trial) => trial.metrics[metric]));
  return all.filter((each): each is Dimension => each !== null);
}

function Overview({
  entry,
  trials,
  facts,
  axes,
}: {
  entry: Entry;
  trials: Entry[];
  facts: SearchFacts | null;
  axes: Dimension[];
}) {
  const { metric, sign } = runs.aim(entry);
  const best = metric ? runs.bestTrials(entry)[0] : undefined;
  const pareto = Array.isArray(entry.metric) && entry.metric.length > 1;
  if (!trials.length) return <Empty>No trial has been created yet.</Empty>;
  const brushed = Object.keys(brushes()).length > 0;
  return (
    <div class="overview">
      {facts?.continue && !entry.alive && entry.status !== "finished" ? (
        <section class="card wide">
          <h3>How to continue</h3>
          <Command text={facts.continue} />
        </section>
      ) : null}
      {best && best.status !== "failed" && typeof best.metrics[metric] === "number" ? (
        <section class="card best wide">
          <h3>
            Best trial: <a href={link(runs.pageOf(best), carried())}>{runs.title(best)}</a>{" "}
            <span class="figure">
              <Name text={metric} /> {number(best.metrics[metric])}
            </span>
          </h3>
          <p class="quiet">
            <Name text={runs.subtitle(best)} />
          </p>
        </section>
      ) : null}
      <section class="card">
        <h3>{pareto ? "Pareto front" : metric ? `Best ${metric} so far` : "Best so far"}</h3>
        {metric ? (
          pareto ? (
            <Pareto entry={entry} trials={trials} />
          ) : (
            <BestSoFar entry={entry} trials={trials} metric={metric} sign={sign} />
          )
        ) : (
          <p class="quiet">The search has no metric.</p>
        )}
      </section>
      <section class="card">
        <h3>Importance of parameters</h3>
        <Importance facts={facts} />
      </section>
      <section class="card wide">
        <h3>
          Parameters{" "}
          {brushed ? (
            <button type="button" class="small" onClick={() => choose({ brush: "" })}>
              Clear the selection ×
            </button>
          ) : (
            <span class="hint">drag along an axis to select trials</span>
          )}
        </h3>
        {axes.length > 1 ? (
          <Parallel trials={trials} axes={axes} sign={sign} />
        ) : (
          <p class="quiet">There is nothing to compare yet.</p>
        )}
      </section>
      <section class="card wide">
        <h3>Timeline</h3>
        <Timeline trials={trials} />
      </section>
      {brushed ? (
        <section class="card wide chosen">
          <h3>Selected trials</h3>
          <Table entry={entry} trials={trials} axes={axes} />
        </section>
      ) : null}
    </div>
  );
}

function Importance({ facts }: { facts: SearchFacts | null }) {
  if (!facts || facts.pending) return <p class="quiet">Computing …</p>;
  const pairs = Object.entries(facts.importance ?? {}).sort((a, b) => b[1] - a[1]);
  if (!pairs.length) return <p class="quiet">{facts.why || "There are too few trials to tell."}</p>;
  const most = Math.max(...pairs.map(([, share]) => share), 1e-9);
  return (
    <div class="importance">
      {pairs.slice(0, MOST_AXES).map(([name, share]) => (
        <div key={name}>
          <Name text={name} />
          <i style={{ width: `${(60 * share) / most}%` }} />
          <span class="figure">{(100 * share).toFixed(0)} %</span>
        </div>
      ))}
    </div>
  );
}

interface Point {
  trial: Entry;
  x: number;
  y: number;
}

/** A small chart of points of trials, one of which can be opened, and a line. */
function Points({
  points,
  line,
  xText,
  marked,
}: {
  points: Point[];
  line: (number | null)[];
  xText: (x: number) => string;
  marked?: boolean;
}) {
  const [measure, { width }] = useSize<HTMLDivElement>();
  const box = useRef<HTMLDivElement>(null);
  const reading = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (width < 50) return;
    const shared = axisLook();
    const say = (u: uPlot) => {
      const at = u.cursor.idx;
      const found = at === null || at === undefined ? undefined : points[at];
      reading.current!.textContent =
        found && (u.cursor.left ?? -1) >= 0 ? `${runs.title(found.trial)}  ${xText(found.x)}  ${number(found.y)}` : "";
    };
    const plot = new uPlot(
      {
        width: Math.floor(width),
        height: 200,
        padding: [8, 12, 0, 0],
        legend: { show: false },
        cursor: { drag: { x: false, y: false } },
        scales: { x: { time: false } },
        axes: [
          marked
            ? { ...shared, size: 28, values: ticks }
            : { ...shared, size: 28, values: shortTimes, incrs: TIME_STEPS },
          { ...shared, size: yRoom, values: ticks },
        ],
        series: [
          {},
          {
            stroke: colour("quiet"),
            paths: () => null,
            points: { show: true, size: 4, fill: colour("quiet"), width: 0 },
          },
          {
            stroke: colour("accent"),
            width: 2,
            ...(marked ? {} : { paths: uPlot.paths.stepped!({ align: 1 }) }),
            spanGaps: true,
            points: { show: !!marked, size: 6 },
          },
        ],
        hooks: { setCursor: [say] },
      },
      [points.map((each) => each.x), points.map((each) => each.y), line],
      box.current!,
    );
    plot.over.addEventListener("click", () => {
      const found = typeof plot.cursor.idx === "number" ? points[plot.cursor.idx] : undefined;
      if (found) go(link(runs.pageOf(found.trial), carried()));
    });
    return () => plot.destroy();
  }, [points, line, width, theme.value]);
  return (
    <div ref={measure}>
      <div ref={box} style={{ height: "200px" }} />
      <span class="reading below" ref={reading} />
    </div>
  );
}

function BestSoFar({ entry, trials, metric, sign }: { entry: Entry; trials: Entry[]; metric: string; sign: 1 | -1 }) {
  const [points, line] = useMemo(() => {
    const found: Point[] = [];
    for (const trial of trials) {
      const y = trial.metrics[metric];
      const end = trial.ended ?? (trial.started ? trial.started + trial.seconds : null);
      if (typeof y === "number" && end !== null) found.push({ trial, x: end - entry.started, y });
    }
    found.sort((a, b) => a.x - b.x);
    let best = Infinity * sign;
    return [found, found.map(({ y }) => (best = sign === 1 ? Math.min(best, y) : Math.max(best, y)))];
  }, [trials, metric, sign, entry.started]);
  if (!points.length) return <p class="quiet">No trial has reported it yet.</p>;
  return <Points points={points} line={line} xText={(x) => duration(Math.max(0, x))} />;
}

function Pareto({ entry, trials }: { entry: Entry; trials: Entry[] }) {
  const [first, second] = [entry.metric].flat() as [string, string];
  const [a, b] = [entry.mode].flat().map((mode) => (mode === "max" ? -1 : 1)) as [number, number];
  const [points, line] = useMemo(() => {
    const found: Point[] = trials.flatMap((trial) => {
      const [x, y] = [trial.metrics[first], trial.metrics[second]];
      return typeof x === "number" && typeof y === "number" ? [{ trial, x, y }] : [];
    });
    found.sort((p, q) => p.x - q.x);
    // From the better end of the first metric: a trial is on the front if it is better in the second than all before.
    const walk = a === 1 ? found.map((_, k) => k) : found.map((_, k) => found.length - 1 - k);
    const front: (number | null)[] = found.map(() => null);
    let best = Infinity;
    for (const k of walk) {
      if (b * found[k]!.y < best) {
        best = b * found[k]!.y;
        front[k] = found[k]!.y;
      }
    }
    return [found, front];
  }, [trials, first, second, a, b]);
  if (!points.length) return <p class="quiet">No trial has reported both metrics yet.</p>;
  return (
    <>
      <p class="hint">
        <Name text={first} /> across, <Name text={second} /> up
      </p>
      <Points points={points} line={line} xText={number} marked />
    </>
  );
}

function Table({ entry, trials, axes }: { entry: Entry; trials: Entry[]; axes: Dimension[] }) {
  const kept = within(axes, brushes());
  const rows = runs.listed(entry.id, kept).map((each) => ({ entry: each, depth: 0 }));
  const extra = columns.value.length
    ? columns.value
    : runs
        .paramsOf(trials)
        .slice(0, 6)
        .map((name) => `p:${name}`);
  return <RunTable rows={rows} extra={extra} order={order("number.asc")} />;
}

function Trials({ entry, trials, axes }: { entry: Entry; trials: Entry[]; axes: Dimension[] }) {
  return (
    <div class="runs">
      <Filters placeholder="Filter trials: words, lr<0.01, loss>=2" withStatus={false} />
      <Table entry={entry} trials={trials} axes={axes} />
    </div>
  );
}

function Curves({ entry }: { entry: Entry }) {
  const [most, setMost] = useState(runs.TRIALS_AT_FIRST);
  const selected = new Set(runs.selection.value);
  const best = runs.bestTrials(entry);
  // Without a choice of the user's own, more of the best trials can be drawn than are selected.
  const all = chosen.value ? best.filter(({ id }) => selected.has(id)) : best;
  const shown = chosen.value || most > selected.size ? all.slice(0, most) : all.filter(({ id }) => selected.has(id));
  const curves = shown.map((each, k) => ({ run: each.id, place: runs.colours.value.get(each.id) ?? k }));
  const { metric } = runs.aim(entry);
  const metrics = runs.metricsOf(shown);
  const names = [...metrics.filter((name) => name === metric), ...metrics.filter((name) => name !== metric)];
  return (
    <div class="curves">
      <ChartTools />
      {all.length ? (
        <p class="quiet">
          {number(shown.length)} of {counted(all.length, chosen.value ? "selected trial" : "trial")}
          {metric ? `; best ${metric} first` : "; newest first"}{" "}
          {all.length > shown.length ? (
            <button type="button" class="small" onClick={() => setMost(most + runs.TRIALS_AT_FIRST)}>
              Show more
            </button>
          ) : null}
        </p>
      ) : null}
      <Charts metrics={names} curves={curves} none="Select trials in the table to see their curves." />
    </div>
  );
}
