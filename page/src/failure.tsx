// What went wrong, on one screen: the cause, the traceback, the end of the log, and how to continue.

import { get, type CheckpointFacts, type Entry, type Facts, type Failure, type LogPart } from "./api";
import { flat } from "./config";
import { counted, moment, number } from "./format";
import { cause, endedBadly } from "./runs";
import { Command, Name, useAnswer } from "./ui";
import { choose } from "./url";
import { plainText } from "./text";

const TAIL_BYTES = 12_000;
const TAIL_LINES = 60;

/** What happened, in one sentence, for a run that did not finish. */
function verdict(entry: Entry, facts: Facts): string {
  const last = facts.failures[facts.failures.length - 1];
  if (!endedBadly(entry)) return `The run was retried. The last failure was: ${last ? inWords(last) : entry.error}`;
  switch (entry.status) {
    case "killed":
      return "The driver of this run is gone: it was killed, or its machine went down.";
    case "interrupted":
      return entry.error || "The run was interrupted.";
    case "failed":
      return last ? inWords(last) : cause(entry) || "The run failed.";
    default:
      return entry.error || `The run is ${entry.status}.`;
  }
}

const inWords = (failure: Failure): string => `Rank ${failure.rank}: ${failure.message.trim().split("\n")[0]}`;

/** The rank that a failure began at; without one, the first. */
export function rootRank(entry: Entry, { failures, ranks }: Facts): number {
  const last = failures[failures.length - 1];
  return entry.status === "killed" || !last ? (ranks[0] ?? 0) : last.rank;
}

/** When a run that nobody ended did something for the last time: its last report or checkpoint; 0 if it did nothing. */
function lastSeen(entry: Entry, { attempts, checkpoints }: Facts): number {
  const last = attempts[attempts.length - 1];
  const reported = last ? last.time + Math.max(0, entry.seconds - last.start_time_s) : entry.started;
  return Math.max(reported, ...checkpoints.map((each) => each.time ?? 0));
}

export function FailurePage({ entry, facts }: { entry: Entry; facts: Facts }) {
  const failures = [...facts.failures].reverse();
  const [last, ...earlier] = failures;
  const killed = entry.status === "killed";
  const seen = killed ? lastSeen(entry, facts) : 0;
  const rank = rootRank(entry, facts);
  const kept = facts.checkpoints.filter((each) => each.kept).at(-1);
  return (
    <div class="failure">
      <section class={`verdict ${entry.status === "failed" ? "failed" : "killed"}`} role="alert">
        <h2>{verdict(entry, facts)}</h2>
        <p>
          {entry.workers > 1 ? "Rank 0" : "It"} reported {counted(entry.iteration, "iteration")} in{" "}
          {counted(entry.attempts || facts.attempts.length, "attempt")}
          {entry.ended ? ` and ended at ${moment(entry.ended)}` : seen ? ` and was last seen at ${moment(seen)}` : ""}.
          {last && !killed
            ? ` Root cause: rank ${last.rank} of ${entry.workers}, attempt ${last.attempt + 1}${last.cause ? ` (${causeText(last.cause)})` : ""}.`
            : ""}
          {facts.how_to_continue && facts.kind === "run" ? ` ${goesOn(kept)}` : ""}
        </p>
        {last && !killed ? <LastReport facts={facts} rank={last.rank} workers={entry.workers} /> : null}
        <div class="buttons">
          {facts.ranks.includes(rank) ? (
            <button type="button" onClick={() => choose({ tab: "logs", rank: String(rank) })}>
              Log of rank {rank}
            </button>
          ) : null}
          {entry.alive ? (
            <button type="button" onClick={() => choose({ tab: "ranks" })}>
              Ranks and stacks
            </button>
          ) : null}
        </div>
        {facts.how_to_continue ? (
          <>
            <h3>How to continue</h3>
            <Command text={facts.how_to_continue} />
          </>
        ) : null}
      </section>
      {last?.traceback.trim() ? (
        <Trace failure={last} heading={killed ? "Last failure before that" : "Traceback"} />
      ) : null}
      {facts.ranks.includes(rank) ? <Tail run={entry.id} rank={rank} /> : null}
      {earlier.length ? (
        <details class="earlier">
          <summary>{counted(earlier.length, "earlier failure")} that the run was retried after</summary>
          {earlier.map((failure) => (
            <Trace
              key={failure.attempt}
              failure={failure}
              heading={`Attempt ${failure.attempt + 1}, rank ${failure.rank}: ${failure.message}`}
            />
          ))}
        </details>
      ) : null}
    </div>
  );
}

const MOST_VALUES = 12;

/** The other numbers of the page are those of rank 0. */
function LastReport({ facts, rank, workers }: { facts: Facts; rank: number; workers: number }) {
  if (workers < 2) return null;
  const report = facts.last_report;
  if (!report) return <p class="last-report">Rank {rank} reported nothing shortly before.</p>;
  const values = flat(report.metrics).filter((pair): pair is [string, number] => typeof pair[1] === "number");
  const said = values.slice(0, MOST_VALUES).map(([name, value]) => `${name} ${number(value)}`);
  return (
    <p class="last-report">
      Last report of rank {rank}: iteration {number(report.iteration)}
      {said.length ? ": " : ""}
      <Name text={said.join(", ")} />
    </p>
  );
}

const goesOn = (kept: CheckpointFacts | undefined): string =>
  kept
    ? `It can continue from checkpoint ${kept.number}, after iteration ${number(kept.iteration)}.`
    : "It has no checkpoint, so it can only start again.";

const causeText = (cause: string): string =>
  ({
    signal: "killed by a signal",
    oom: "out of memory",
    exit: "the process exited",
    premature_exit: "the process exited early",
    hang: "no progress",
  })[cause] ?? cause.replaceAll("_", " ");

interface Block {
  lines: string[];
  own: boolean;
  frame: boolean;
}

const FOREIGN =
  /[\\/](?:site-packages|dist-packages|lib[\\/]python3\.\d+|paceline[\\/](?:air|run|train|engine|data|tune|storage))[\\/]|^\s*File "<frozen /;

/** A traceback in its frames; those of the user's own files are told from those of libraries. */
export function blocksOf(traceback: string): Block[] {
  const blocks: Block[] = [];
  for (const line of traceback.replace(/\n$/, "").split("\n")) {
    const last = blocks[blocks.length - 1];
    if (/^\s*File "/.test(line)) blocks.push({ lines: [line], own: !FOREIGN.test(line), frame: true });
    else if (last?.frame && /^\s{3,}/.test(line)) last.lines.push(line);
    else blocks.push({ lines: [line], own: false, frame: false });
  }
  return blocks;
}

export function Trace({ failure, heading }: { failure: Failure; heading: string }) {
  if (!failure.traceback.trim())
    return (
      <section>
        <h3>{heading}</h3>
        <p class="quiet">
          <Name text={failure.message || "There is no traceback: the process ended without one."} />
        </p>
      </section>
    );
  return (
    <section>
      <h3>{heading}</h3>
      <Frames text={failure.traceback} />
    </section>
  );
}

export const Frames = ({ text }: { text: string }) => (
  <pre class="trace">
    {blocksOf(plainText(text)).map((block, k) => (
      <span key={k} class={block.own ? "own" : block.frame ? "foreign" : "said"}>
        {block.lines.join("\n")}
      </span>
    ))}
  </pre>
);

function Tail({ run, rank }: { run: string; rank: number }) {
  const [part, error] = useAnswer<LogPart>(
    (signal) => get("logs", { run, rank, max: TAIL_BYTES }, signal),
    [run, rank],
  );
  const lines = part ? plainText(part.text).replace(/\n$/, "").split("\n").slice(-TAIL_LINES) : [];
  return (
    <section>
      <h3>End of the log of rank {rank}</h3>
      {error ? <p class="quiet">{error instanceof Error ? error.message : String(error)}</p> : null}
      {part && !part.text ? <p class="quiet">The rank printed nothing.</p> : null}
      {part?.text ? (
        <pre class="tail" ref={(element) => element?.scrollTo(0, element.scrollHeight)}>
          {lines.join("\n")}
        </pre>
      ) : null}
    </section>
  );
}
