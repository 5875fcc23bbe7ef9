// The checkpoints of a run: score, size, whether their bytes are intact, and a copy of one.

import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { address, post, type CheckpointFacts, type Entry, type Facts, type ValidationFacts } from "./api";
import { bytes, moment, number } from "./format";
import { Empty } from "./ui";

type Verdict = { ok: boolean; problem: string; unknown?: boolean } | "asking";

export function Checkpoints({ entry, facts }: { entry: Entry; facts: Facts }) {
  const [verdicts, set] = useState<Record<number, Verdict>>({});
  const kept = [...facts.checkpoints].sort((a, b) => b.number - a.number);
  if (!kept.length) return <Empty>The run has no checkpoints{entry.alive ? " yet" : ""}.</Empty>;
  const verify = async (place: number) => {
    set((before) => ({ ...before, [place]: "asking" }));
    let verdict: Verdict;
    try {
      verdict = await post<{ ok: boolean; problem: string }>(`run/${entry.id}/checkpoints/${place}/verify`);
    } catch (error) {
      verdict = { ok: false, unknown: true, problem: error instanceof Error ? error.message : String(error) };
    }
    set((before) => ({ ...before, [place]: verdict }));
  };
  const scored = kept.some((each) => each.score !== null);
  const validations = new Map(facts.validations.map((each) => [each.number, each]));
  return (
    <div class="scroll">
      <table class="plain">
        <thead>
          <tr>
            <th class="right">Number</th>
            <th class="right">Iteration</th>
            {scored ? <th class="right">Score</th> : null}
            {validations.size ? <th>Validation</th> : null}
            <th class="right">Size</th>
            <th>Time</th>
            <th>Files</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {kept.map((each) => (
            <Fragment key={each.number}>
              <tr class={each.kept ? "" : "gone"}>
                <td class="right">{each.number}</td>
                <td class="right">{number(each.iteration)}</td>
                {scored ? <td class="right">{number(each.score)}</td> : null}
                {validations.size ? (
                  <td>
                    <Validation facts={validations.get(each.number)} />
                  </td>
                ) : null}
                <td class="right">{bytes(each.size)}</td>
                <td>{each.time ? moment(each.time) : "–"}</td>
                <td>{each.kept ? <Checked verdict={verdicts[each.number]} /> : <Gone facts={each} />}</td>
                <td class="doing">
                  {each.kept ? (
                    <>
                      <button
                        type="button"
                        class="small"
                        disabled={verdicts[each.number] === "asking"}
                        onClick={() => verify(each.number)}
                      >
                        Verify
                      </button>
                      <a
                        class="button small"
                        href={address(`run/${entry.id}/checkpoints/${each.number}/download`)}
                        download
                      >
                        Download
                      </a>
                    </>
                  ) : null}
                </td>
              </tr>
              <Wrong verdict={verdicts[each.number]} across={6 + Number(scored) + Number(validations.size > 0)} />
            </Fragment>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The metrics of one that is done are among the curves. */
function Validation({ facts }: { facts: ValidationFacts | undefined }) {
  if (!facts) return <span class="faint">–</span>;
  if (facts.state === "failed")
    return (
      <span class="bad" title={facts.error}>
        failed
      </span>
    );
  return facts.state === "done" ? <span class="good">done</span> : <span>pending</span>;
}

/** A checkpoint that the run itself deleted is no cause for concern; others are. */
function Gone({ facts }: { facts: CheckpointFacts }) {
  if (facts.damaged) return <span class="bad">damaged, put aside</span>;
  return facts.missing ? <span class="bad">missing</span> : <span class="faint">deleted</span>;
}

function Checked({ verdict }: { verdict: Verdict | undefined }) {
  if (!verdict) return <span class="faint">not checked</span>;
  if (verdict === "asking") return <span>reading …</span>;
  if (verdict.ok) return <span class="good">intact</span>;
  return <span class="bad">{verdict.unknown ? "not checked" : "damaged"}</span>;
}

/** Paths and hashes are long: what is wrong has a line of its own, as wide as the table. */
function Wrong({ verdict, across }: { verdict: Verdict | undefined; across: number }) {
  if (!verdict || verdict === "asking" || verdict.ok || !verdict.problem) return null;
  return (
    <tr class="wrong">
      <td colSpan={across}>
        <div class="bad" role="alert">
          {verdict.problem}
        </div>
      </td>
    </tr>
  );
}
