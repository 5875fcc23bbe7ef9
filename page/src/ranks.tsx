// The ranks of a run: what each is doing, who is slow, and where each of them is in its code.

import { useEffect, useState } from "preact/hooks";
import { get, post, type Entry, type Rank } from "./api";
import { blocksOf } from "./failure";
import { brief, bytes, number } from "./format";
import { about } from "./runs";
import { plainText } from "./text";
import { Empty, Loading, Name, Problem, useAnswer } from "./ui";

const EVERY_MS = 2_000;

const LABELS: Record<string, string> = {
  rank: "Rank",
  host: "Host",
  pid: "Process",
  processes: "Processes",
  state: "State",
  last_index: "Last report",
  step_rate: "Steps/s",
  step_time: "Step time",
  data_wait: "Data wait",
  report_wait: "Report wait",
  checkpoint_wait: "Checkpoint wait",
  collective_wait: "All-reduce wait",
  cpu: "CPU %",
  memory: "Memory",
};
const ORDER = Object.keys(LABELS);
/** Of these, the largest value is the slowest rank's; of `step_rate` and `last_index` the smallest. */
const LARGER_IS_SLOWER = new Set(["step_time", "data_wait"]);
const SMALLER_IS_SLOWER = new Set(["step_rate", "last_index"]);
/** Parts of the step time. They are shown if some rank has waited at all. */
const WAITS = new Set(["data_wait", "report_wait", "checkpoint_wait", "collective_wait"]);

export function Ranks({ entry }: { entry: Entry }) {
  const [tick, setTick] = useState(0);
  useEffect(() => {
    if (!entry.alive) return;
    const timer = setInterval(() => document.hidden || setTick((count) => count + 1), EVERY_MS);
    return () => clearInterval(timer);
  }, [entry.alive]);
  const [ranks, error] = useAnswer<Rank[]>((signal) => get(`run/${entry.id}/ranks`, {}, signal), [entry.id, tick]);
  return (
    <div class="ranks">
      {error ? <Problem error={error} /> : null}
      {ranks ? <RankTable ranks={ranks} alive={entry.alive} /> : error ? null : <Loading what="ranks" />}
      <Stacks entry={entry} />
    </div>
  );
}

/** The places of values that are clearly slower than the median. */
function slowest(values: (number | null)[], column: string): Set<number> {
  const known = values.filter((each): each is number => each !== null).sort((a, b) => a - b);
  if (known.length < 2 || !(LARGER_IS_SLOWER.has(column) || SMALLER_IS_SLOWER.has(column))) return new Set();
  const middle = known[(LARGER_IS_SLOWER.has(column) ? known.length - 1 : known.length) >> 1]!; // of two, the faster
  const late = (value: number) =>
    LARGER_IS_SLOWER.has(column)
      ? value > 1.2 * middle
      : column === "last_index"
        ? value < middle - 1
        : value < 0.83 * middle;
  return new Set(values.flatMap((value, place) => (value !== null && late(value) ? [place] : [])));
}

function RankTable({ ranks, alive }: { ranks: Rank[]; alive: boolean }) {
  if (!ranks.length)
    return (
      <Empty>
        {alive ? "Nothing has been measured yet." : "The run reported nothing that is known on this machine."}
      </Empty>
    );
  const names = [...new Set(ranks.flatMap((each) => Object.keys(each)))].filter((name) =>
    ranks.some((each) => each[name] !== null && each[name] !== "" && !(WAITS.has(name) && each[name] === 0)),
  );
  const columns = names.sort((a, b) => (ORDER.indexOf(a) + 1 || 99) - (ORDER.indexOf(b) + 1 || 99));
  const numeric = new Set(columns.filter((name) => ranks.some((each) => typeof each[name] === "number")));
  const slow = new Map(
    columns.map((name) => [
      name,
      slowest(
        ranks.map((each) => (typeof each[name] === "number" ? (each[name] as number) : null)),
        name,
      ),
    ]),
  );
  return (
    <div class="scroll">
      <table class="plain">
        <thead>
          <tr>
            {columns.map((name) => (
              <th key={name} class={numeric.has(name) ? "right" : ""}>
                {LABELS[name] ?? name.replaceAll("_", " ")}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {ranks.map((each, place) => (
            <tr key={each.rank}>
              {columns.map((name) => (
                <td
                  key={name}
                  class={`${numeric.has(name) ? "right" : ""} ${slow.get(name)?.has(place) ? "slow" : ""}`}
                >
                  {name === "last_index" && each[name] === null ? (
                    <span class="slow" title="None of the run's last rows is this rank's">
                      far behind
                    </span>
                  ) : (
                    measured(name, each[name] ?? null, each.step_time ?? null)
                  )}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function measured(name: string, value: number | string | null, step: number | string | null) {
  if (value === null) return <span class="faint">–</span>;
  if (typeof value === "string") return <Name text={value} />;
  if (name === "step_time") return brief(value);
  if (WAITS.has(name))
    return typeof step === "number" && step > 0 ? (
      <>
        {brief(value)} <span class="faint">{Math.round((100 * value) / step)} %</span>
      </>
    ) : (
      brief(value)
    );
  if (name === "memory") return bytes(value);
  if (name === "pid" || name === "rank") return String(value);
  return name === "cpu" ? value.toFixed(0) : number(value);
}

function Stacks({ entry }: { entry: Entry }) {
  const [stacks, set] = useState<Record<string, string> | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [asking, setAsking] = useState(false);
  if (!entry.alive) return null;
  if (about.value?.read_only) return <Empty>The page was started read-only: stacks cannot be asked for.</Empty>;
  const ask = async () => {
    setAsking(true);
    try {
      set(await post<Record<string, string>>(`run/${entry.id}/stacks`));
      setError(null);
    } catch (refused) {
      setError(refused);
    }
    setAsking(false);
  };
  return (
    <section class="stacks">
      <div class="bar tools">
        <h3>Stacks</h3>
        <button type="button" disabled={asking} onClick={ask}>
          {asking ? "Asking …" : stacks ? "Ask again" : "Show the stacks of all ranks"}
        </button>
        <span class="hint">Each rank prints where it is. Nothing is stopped.</span>
      </div>
      {error ? <Problem error={error} /> : null}
      {stacks ? <SideBySide stacks={stacks} /> : null}
    </section>
  );
}

/** Addresses differ from process to process and say nothing. */
const comparable = (text: string): string => text.replace(/0x[0-9a-f]+/gi, "").replace(/\b(?:pid|thread)\s+\d+/gi, "");

/** Ranks that are at the same place share a column: with a hung rank, the one that differs stands out. */
function SideBySide({ stacks }: { stacks: Record<string, string> }) {
  const groups = new Map<string, { ranks: string[]; text: string }>();
  for (const rank of Object.keys(stacks).sort((a, b) => Number(a) - Number(b))) {
    const key = comparable(stacks[rank]!);
    const group = groups.get(key);
    if (group) group.ranks.push(rank);
    else groups.set(key, { ranks: [rank], text: stacks[rank]! });
  }
  const most = Math.max(...[...groups.values()].map((group) => group.ranks.length));
  return (
    <div class="side-by-side">
      {[...groups.values()].map(({ ranks, text }) => (
        <div key={ranks[0]} class={`stack ${groups.size > 1 && ranks.length < most ? "differs" : ""}`}>
          <h4>
            {ranks.length === 1 ? "Rank" : "Ranks"} {ranks.join(", ")}
          </h4>
          <pre class="trace">
            {blocksOf(plainText(text)).map((block, k) => (
              <span key={k} class={block.own ? "own" : block.frame ? "foreign" : "said"}>
                {block.lines.join("\n")}
              </span>
            ))}
          </pre>
        </div>
      ))}
    </div>
  );
}
