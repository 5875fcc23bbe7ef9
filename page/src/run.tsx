// The page of one run or trial.

import { useEffect, useMemo, useState } from "preact/hooks";
import { address, get, post, type Entry, type Facts } from "./api";
import { Charts, ChartTools } from "./charts";
import { Checkpoints } from "./checkpoints";
import { Config, flat } from "./config";
import { FailurePage, rootRank } from "./failure";
import { duration, moment, number } from "./format";
import { useKeys } from "./keys";
import { Logs } from "./logs";
import { Ranks } from "./ranks";
import * as runs from "./runs";
import { Empty, Loading, Name, Problem, question, Status, Tabs, useAnswer } from "./ui";
import { carried, choose, link, tab } from "./url";

/** The facts of the run that the page was opened for: asked for beside the list, which may be long. */
const early = new Map<string, Promise<Facts>>();

function factsOf(id: string, signal: AbortSignal): Promise<Facts> {
  const known = early.get(id);
  early.delete(id);
  return known ?? get<Facts>(`run/${id}`, {}, signal);
}

/** The line of a run, before there is a list that has it. */
function anticipated(id: string, { kind, parent, summary, metrics }: Facts): Entry {
  const { reached, num_workers, error, ...said } = summary;
  const last = flat(reached.metrics).filter((pair): pair is [string, number] => typeof pair[1] === "number");
  return {
    ...said,
    id,
    kind,
    parent,
    workers: num_workers,
    error: error.trim().split("\n")[0]!,
    iteration: reached.iteration,
    seconds: reached.time_total_s,
    attempts: reached.attempts,
    metrics: Object.fromEntries(last.filter(([name]) => metrics.includes(name))),
    checkpoints: reached.checkpoints.length,
    size: reached.size,
    ...{ best: {}, params: {}, counts: {}, metric: null, mode: null, total: null, number: null },
  };
}

export function RunPage({ id }: { id: string }) {
  const entry = runs.entry(id);
  useEffect(() => {
    if (entry || runs.loaded.peek()) return;
    const asked = get<Facts>(`run/${id}`);
    early.set(id, asked);
    asked.then(
      (facts) => runs.anticipate(anticipated(id, facts)),
      () => early.delete(id), // the list will tell
    );
  }, [id]);
  if (!entry)
    return runs.loaded.value ? (
      <Empty>There is no run with this address. It may have been removed.</Empty>
    ) : (
      <Loading what="the run" />
    );
  if (entry.kind === "damaged")
    return (
      <div class="page">
        <Head entry={entry} />
        <Problem error={entry.error} />
      </div>
    );
  return <Known entry={entry} />;
}

function Known({ entry }: { entry: Entry }) {
  // What is not in the list is asked for again only when something has changed that it depends on.
  const when = [
    entry.id,
    entry.status,
    entry.attempts,
    entry.checkpoints,
    entry.error,
    Object.keys(entry.metrics).length,
    entry.iteration > 0,
  ];
  const [facts, error] = useAnswer<Facts>((signal) => factsOf(entry.id, signal), when);
  const bad = runs.endedBadly(entry) || !!entry.error; // a finished run may have been retried
  const names: [string, string][] = [
    ...(bad ? [["failure", failureTab(entry)] as [string, string]] : []),
    ["charts", "Charts"],
    ["logs", "Logs"],
    ["ranks", "Ranks"],
    ["checkpoints", entry.checkpoints ? `Checkpoints ${number(entry.checkpoints)}` : "Checkpoints"],
    ["config", "Configuration"],
  ];
  const usual = runs.endedBadly(entry) ? "failure" : "charts";
  const active = names.some(([name]) => name === tab.value) ? tab.value : usual;
  const show = (name: string) => choose({ tab: name === usual ? "" : name });
  useKeys(Object.fromEntries(names.map(([name], k) => [String(k + 1), () => show(name)])));
  return (
    <div class={`page ${active === "logs" ? "full" : ""}`}>
      <Head entry={entry} />
      <Tabs names={names} active={active} choose={show} />
      {error && !facts ? <Problem error={error} /> : null}
      {facts?.warnings.map((text) => (
        <div key={text} class="warning">
          {text}
        </div>
      ))}
      {facts ? <Body entry={entry} facts={facts} active={active} /> : error ? null : <Loading what="the run" />}
    </div>
  );
}

function failureTab(entry: Entry): string {
  if (!runs.endedBadly(entry)) return "Retried";
  return entry.status === "killed" ? "Killed" : entry.status === "interrupted" ? "Interrupted" : "Failure";
}

function Body({ entry, facts, active }: { entry: Entry; facts: Facts; active: string }) {
  const names = useMemo(() => {
    const known = new Set(facts.metrics);
    return [...facts.metrics, ...Object.keys(entry.metrics).filter((name) => !known.has(name))];
  }, [facts.metrics, Object.keys(entry.metrics).join("\n")]);
  const marks = useMemo(() => facts.attempts.slice(1).map((each) => each.start_index), [facts.attempts]);
  const curves = useMemo(() => [{ run: entry.id, place: 0 }], [entry.id]);
  switch (active) {
    case "failure":
      return <FailurePage entry={entry} facts={facts} />;
    case "logs":
      return <Logs entry={entry} ranks={facts.ranks} first={runs.endedBadly(entry) ? rootRank(entry, facts) : 0} />;
    case "ranks":
      return <Ranks entry={entry} />;
    case "checkpoints":
      return <Checkpoints entry={entry} facts={facts} />;
    case "config":
      return <Config facts={facts} />;
    default:
      return (
        <>
          <ChartTools />
          <Charts metrics={names} curves={curves} marks={marks} />
        </>
      );
  }
}

const took = (entry: Entry): number =>
  entry.alive && entry.started
    ? runs.now.value - entry.started
    : entry.ended && entry.started
      ? entry.ended - entry.started
      : entry.seconds;

export function Head({ entry }: { entry: Entry }) {
  const parent = entry.parent ? runs.entry(entry.parent) : undefined;
  const facts: [string, string][] = [
    [entry.kind === "run" ? "Trainer" : "Trainable", entry.trainer],
    ["Started", entry.started ? moment(entry.started) : "–"],
    [entry.alive ? "Running for" : "Took", took(entry) > 0 ? duration(took(entry)) : "–"],
  ];
  if (entry.kind !== "search")
    facts.splice(1, 0, ["Iteration", number(entry.iteration)], ["Workers", number(entry.workers)]);
  if (entry.kind === "search") {
    const { ended, total } = runs.progress(entry);
    facts.splice(1, 0, ["Trials", total === null ? `${number(ended)} ended` : `${number(ended)} of ${number(total)}`]);
  }
  if (entry.kind === "search" && entry.metric)
    facts.splice(1, 0, [
      "Metric",
      [entry.metric]
        .flat()
        .map((name, k) => `${name} (${[entry.mode].flat()[k] ?? "–"})`)
        .join(", "),
    ]);
  if (entry.kind === "run") facts.push(["Trial id", entry.trial_id]);
  if (entry.attempts > 1) facts.push(["Attempts", number(entry.attempts)]);
  return (
    <header class="head">
      <div class="crumbs">
        <a href={link("/", carried())}>Runs</a>
        {parent ? (
          <>
            {" / "}
            <a href={link(runs.pageOf(parent), carried())}>
              <Name text={runs.title(parent)} />
            </a>
          </>
        ) : null}
      </div>
      <div class="headline">
        <h1>
          <Name text={runs.title(entry)} />
        </h1>
        <Status status={entry.kind === "damaged" ? "damaged" : entry.status} more={runs.failedTrials(entry)} />
        {entry.kind === "damaged" ? null : <Actions entry={entry} />}
      </div>
      {entry.kind === "damaged" ? null : (
        <dl class="facts">
          {facts.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>
                <Name text={value} />
              </dd>
            </div>
          ))}
          {entry.kind === "trial"
            ? Object.entries(entry.params ?? {}).map(([name, value]) => (
                <div key={`p ${name}`} class="param">
                  <dt>
                    <Name text={name} />
                  </dt>
                  <dd>
                    <Name text={typeof value === "number" ? number(value) : String(value)} />
                  </dd>
                </div>
              ))
            : null}
        </dl>
      )}
    </header>
  );
}

function Actions({ entry }: { entry: Entry }) {
  const [said, say] = useState<{ text: string; bad: boolean } | null>(null);
  const stop = async () => {
    say({ text: "Asking the driver …", bad: false });
    try {
      await post(`run/${entry.id}/stop`);
      say({ text: "Stops at the next report.", bad: false });
    } catch (error) {
      say({ text: error instanceof Error ? error.message : String(error), bad: true });
    }
  };
  const ask = () => {
    const what = entry.kind === "search" ? "search" : "run";
    question.value = {
      title: `Stop this ${what}?`,
      text: `${runs.title(entry)} stops at its next report${entry.kind === "search" ? ", and so do its trials" : ""}. It can be continued later.`,
      yes: `Stop the ${what}`,
      act: () => void stop(),
    };
  };
  const mayStop = entry.alive && entry.kind !== "trial" && !about().read_only;
  return (
    <div class="actions">
      {said && (entry.alive || said.bad) ? <span class={said.bad ? "bad" : "quiet"}>{said.text}</span> : null}
      <a class="button small" href={address(`run/${entry.id}/report`)} download>
        HTML report
      </a>
      {mayStop ? (
        <button type="button" class="small danger" onClick={ask}>
          Stop …
        </button>
      ) : null}
    </div>
  );
}

const about = () => runs.about.value ?? { read_only: true };
