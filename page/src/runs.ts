// All runs that the server has found, what of them is listed, and in which order.

import { computed, signal } from "@preact/signals";
import { entriesOf, get, Refused, type About, type Entry } from "./api";
import { number } from "./format";
import { testOf, type Test } from "./match";
import * as url from "./url";

export const about = signal<About | null>(null);
/** Why there is no list; null while it is loading or there is one. */
export const problem = signal<Refused | null>(null);
export const loaded = signal(false);
/** Seconds since the epoch, once a second: what ages are counted from. */
export const now = signal(Date.now() / 1000);
export let listCursor = "";

const entries = new Map<string, Entry>();
const trials = new Map<string, Set<string>>();
/** The same array until a trial changes, so that what is computed from it is computed once. */
const lists = new Map<string, Entry[]>();
const changes = signal(0);

setInterval(() => {
  if (!document.hidden) now.value = Date.now() / 1000;
}, 1000);

export async function load(): Promise<void> {
  try {
    const [facts, answer] = await Promise.all([
      get<About>("about"),
      get<{ cursor: string; entries?: Entry[]; columns?: string[]; rows?: unknown[][] }>("list"),
    ]);
    about.value = facts;
    entries.clear();
    trials.clear();
    lists.clear();
    update(entriesOf(answer), [], answer.cursor);
    loaded.value = true;
    problem.value = null;
  } catch (error) {
    problem.value = error instanceof Refused ? error : new Refused(0, String(error));
  }
}

/** Show a run that the list will have. */
export function anticipate(entry: Entry): void {
  if (loaded.peek()) return;
  entries.set(entry.id, entry);
  changes.value++;
}

/** Take over what has changed. */
export function update(changed: Entry[], removed: string[], cursor: string): void {
  for (const entry of changed) {
    entries.set(entry.id, entry);
    if (entry.parent) {
      lists.delete(entry.parent);
      const known = trials.get(entry.parent);
      if (known) known.add(entry.id);
      else trials.set(entry.parent, new Set([entry.id]));
    }
  }
  for (const id of removed) {
    const entry = entries.get(id);
    if (entry?.parent) {
      trials.get(entry.parent)?.delete(id);
      lists.delete(entry.parent);
    }
    entries.delete(id);
  }
  listCursor = cursor;
  if (changed.length || removed.length) changes.value++;
}

export function entry(id: string): Entry | undefined {
  changes.value; // read, so that whoever shows it is drawn again when it changes
  return entries.get(id);
}

/** The same for code that is not drawn. */
export const peek = (id: string): Entry | undefined => entries.get(id);

export function trialsOf(id: string): Entry[] {
  changes.value;
  let list = lists.get(id);
  if (!list) lists.set(id, (list = [...(trials.get(id) ?? [])].map((each) => entries.get(each)!)));
  return list;
}

export const trialCount = (id: string): number => trials.get(id)?.size ?? 0;

const top = computed(() => {
  changes.value;
  return [...entries.values()].filter((each) => !each.parent || !entries.has(each.parent));
});

/** What a run is called wherever one is named. */
export function title(each: Entry): string {
  if (each.kind === "trial")
    return each.number === null || each.number === undefined ? each.trial_id : `trial ${each.number}`;
  return each.name || each.path;
}

const ENDED_BADLY = new Set(["failed", "killed", "interrupted", "unfinished", "damaged"]);

export const endedBadly = (each: Entry): boolean => !each.alive && ENDED_BADLY.has(each.status);

/** The cause, without the words that every failure begins with. */
export const cause = (each: Entry): string => each.error.replace(/^Training failed: /, "");

export const subtitle = (each: Entry): string =>
  each.kind === "trial" ? params(each) : each.kind === "search" ? aboutSearch(each) : each.trial_id;

function aboutSearch(each: Entry): string {
  const name = metricOf(each);
  const best = each.best[name];
  return `search of ${each.trainer}${typeof best === "number" ? `, best ${name} ${number(best)}` : ""}`;
}

export const params = (each: Entry): string =>
  Object.entries(each.params ?? {})
    .map(([name, value]) => `${name}=${typeof value === "number" ? Number(value.toPrecision(3)) : String(value)}`)
    .join(" ");

export const pageOf = (each: Entry): string => `/${each.kind === "search" ? "search" : "run"}/${each.id}`;

// ---------------------------------------------------------------- what is listed

export interface Row {
  entry: Entry;
  depth: number;
}

type Value = number | string | null;

export function valueOf(each: Entry, column: string): Value {
  switch (column) {
    case "name":
      return title(each).toLowerCase();
    case "status":
      return each.status;
    case "iteration":
      return each.iteration;
    case "seconds":
      return each.seconds;
    case "started":
      return each.started || null;
    case "workers":
      return each.workers;
    case "size":
      return each.size;
    case "number":
      return each.number;
    case "last":
      return lastOf(each);
  }
  const value = column.startsWith("p:") ? each.params?.[column.slice(2)] : each.metrics[column.slice(2)];
  return typeof value === "number" || typeof value === "string"
    ? value
    : value === undefined || value === null
      ? null
      : JSON.stringify(value);
}

/** Without a value, a run comes last in either direction. */
export function sorted(list: Entry[], order: string): Entry[] {
  const [, column, direction] = /^(.*?)(?:\.(asc|desc))?$/.exec(order)!;
  const sign = direction === "asc" ? 1 : -1;
  const keyed = list.map((each) => ({ each, key: valueOf(each, column!) }));
  keyed.sort((a, b) => {
    if (a.key === b.key) return b.each.started - a.each.started || (a.each.id < b.each.id ? -1 : 1);
    if (a.key === null) return 1;
    if (b.key === null) return -1;
    if (typeof a.key === typeof b.key) return a.key < b.key ? -sign : sign;
    return typeof a.key === "number" ? -sign : sign;
  });
  return keyed.map((pair) => pair.each);
}

export const DEFAULT_SORT = "started.desc";

function matching(): Test {
  const test = testOf(url.query.value);
  const wanted = url.status.value;
  return (each) => (!wanted || each.status === wanted) && (!test || test(each));
}

/** The runs and searches, and below an opened search its trials. */
export const rows = computed<Row[]>(() => {
  const matches = matching();
  const order = url.sort.value || DEFAULT_SORT;
  const opened = new Set(url.opened.value.length ? url.opened.value : onlySearch.value);
  const everything = !url.query.value && !url.status.value;
  const found: Row[] = [];
  const shown = top.value.filter(
    (each) => everything || matches(each) || (each.kind === "search" && trialsOf(each.id).some(matches)),
  );
  for (const each of sorted(shown, order)) {
    found.push({ entry: each, depth: 0 });
    if (each.kind !== "search" || !opened.has(each.id)) continue;
    const own = trialsOf(each.id);
    const some = everything ? own : own.filter(matches);
    for (const trial of sorted(some.length || !matches(each) ? some : own, order))
      found.push({ entry: trial, depth: 1 });
  }
  return found;
});

/** The trials of one search that the filter leaves. */
export function listed(id: string, kept?: Test): Entry[] {
  const matches = matching();
  const own = trialsOf(id).filter((each) => matches(each) && (!kept || kept(each)));
  return sorted(own, url.sort.value || "number.asc");
}

/** A page for one search begins with its trials open. */
const onlySearch = computed(() =>
  top.value.length === 1 && top.value[0]!.kind === "search" ? [top.value[0]!.id] : [],
);

export const statuses = computed(() => {
  const counts = new Map<string, number>();
  for (const each of top.value) counts.set(each.status, (counts.get(each.status) ?? 0) + 1);
  return counts;
});

// ---------------------------------------------------------------- metrics and selection

const FEW = 2000;

/** The metrics that runs reported, most common first; of very many runs only some are looked at. */
export function metricsOf(list: Entry[]): string[] {
  const counts = new Map<string, number>();
  const step = Math.ceil(list.length / FEW) || 1;
  for (let k = 0; k < list.length; k += step) {
    for (const name of Object.keys(list[k]!.metrics)) counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]).map(([name]) => name);
}

export const metrics = computed(() => {
  changes.value;
  return metricsOf([...entries.values()]);
});

export function paramsOf(list: Entry[]): string[] {
  const names = new Set<string>();
  const step = Math.ceil(list.length / FEW) || 1;
  for (let k = 0; k < list.length; k += step) Object.keys(list[k]!.params ?? {}).forEach((name) => names.add(name));
  return [...names];
}

export const parameters = computed(() => {
  changes.value;
  return paramsOf([...entries.values()]);
});

// As in notebooks (paceline/run/curves.py).
const COUNTER = /(?:^|[/_ ])(epoch|step|iter|iteration|batch|time|lr|learning_rate|seed|rank|world_size)s?$/;

/** The metric that says most about runs: what they are judged by or a loss, if most have it; else the most common one. */
function telling(list: Entry[]): string {
  const counts = new Map<string, number>();
  const favourites = new Set(list.map((each) => each.metric));
  const step = Math.ceil(list.length / FEW) || 1;
  const some = list.filter((each, k) => k % step === 0 && Object.keys(each.metrics).length);
  for (const each of some) for (const name of Object.keys(each.metrics)) counts.set(name, (counts.get(name) ?? 0) + 1);
  const names = [...counts].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const usual = names.filter((name) => counts.get(name)! > some.length / 2);
  const saying = (name: string) => !COUNTER.test(name.toLowerCase());
  return (
    usual.find((name) => favourites.has(name)) ??
    usual.find((name) => saying(name) && name.toLowerCase().includes("loss")) ??
    names.find(saying) ??
    names[0] ??
    ""
  );
}

const searchOfPage = computed(() => {
  changes.value;
  return url.path.value.startsWith("/search/") ? entries.get(url.path.value.slice("/search/".length)) : undefined;
});

/** The metric that a list shows: the chosen one, the one that the search is about, or the one that says most. */
export const metric = computed(() => {
  if (url.metric.value) return url.metric.value;
  const single = top.value.filter(({ kind }) => kind === "run");
  const search = searchOfPage.value ?? (single.length ? undefined : top.value.find(({ kind }) => kind === "search"));
  return (search && aim(search).metric) || telling(single) || metrics.value[0] || "";
});

/** The metric in the row of a run: of a search and its trials the one that the search is about. */
export function metricOf(each: Entry): string {
  if (url.metric.value) return url.metric.value;
  const search = each.kind === "search" ? each : each.parent ? entries.get(each.parent) : undefined;
  return (search && aim(search).metric) || metric.value;
}

/** What was reported last; for a search, by the last of its trials that has reported, as `paceline ls` has it. */
export function lastOf(each: Entry): number | null {
  const name = metricOf(each);
  if (each.kind !== "search") return each.metrics[name] ?? null;
  let last: Entry | undefined;
  for (const trial of trialsOf(each.id))
    if (typeof trial.metrics[name] === "number" && (trial.number ?? 0) >= (last?.number ?? 0)) last = trial;
  return last?.metrics[name] ?? null;
}

export const PRESELECTED = 10;
/** On the page of a search; the server lets so many curves of a tab grow. */
export const TRIALS_AT_FIRST = 30;
/** By page: the list begins with the newest runs, a search with its best trials. */
const preselected = new Map<string, string[]>();

/** The runs whose curves are drawn, in the order of their colours. */
export const selection = computed<string[]>(() => {
  const chosen = url.chosen.value;
  if (chosen) return chosen.filter((id) => entries.has(id) || !loaded.value);
  changes.value;
  const page = url.path.value;
  if (loaded.value) {
    const before = preselected.get(page) ?? [];
    if (!before.length) preselected.set(page, usual(page));
    else if (searchOfPage.value) preselected.set(page, replaced(before, usual(page)));
  }
  return (preselected.get(page) ?? []).filter((id) => entries.has(id));
});

/** Other trials become the best while a search runs: what stays keeps its colour. */
function replaced(before: string[], after: string[]): string[] {
  const fresh = after.filter((id) => !before.includes(id));
  const kept = before.map((id) => (after.includes(id) ? id : fresh.shift())).filter((id) => id !== undefined);
  return [...kept, ...fresh];
}

function usual(page: string): string[] {
  const only = page === "/" ? onlySearch.peek()[0] : undefined;
  const search = searchOfPage.peek() ?? (only ? entries.get(only) : undefined);
  const found = search ? bestTrials(search) : rows.peek().map(({ entry }) => entry);
  const curves = found.filter(({ kind }) => kind === "run" || kind === "trial");
  return curves.slice(0, searchOfPage.peek() ? TRIALS_AT_FIRST : PRESELECTED).map(({ id }) => id);
}

/** The first metric of a search, and whether less of it is better. */
export function aim(search: Entry): { metric: string; sign: 1 | -1 } {
  const [metric] = [search.metric].flat();
  const [mode] = [search.mode].flat();
  return { metric: metric ?? "", sign: mode === "max" ? -1 : 1 };
}

/** How many trials of a search have ended, and how many there will be; null if nobody knows. As `paceline ls` counts. */
export function progress({ counts, total }: Entry): { ended: number; total: number | null } {
  const open = ["running", "pending", "killed"];
  const ended = Object.entries(counts ?? {}).reduce((sum, [name, n]) => sum + (open.includes(name) ? 0 : n), 0);
  return { ended, total };
}

/** What to add to the status of a search that has failed trials. */
export function failedTrials({ counts }: Entry): string {
  const failed = counts?.["failed"] ?? 0;
  return failed ? `, ${failed.toLocaleString("en-US")} failed` : "";
}

const ranked = new WeakMap<Entry[], Entry[]>();

/** Best first. As everywhere in paceline, the earlier one of equal trials is better, and failed ones do not count. */
export function bestTrials(search: Entry): Entry[] {
  const { metric, sign } = aim(search);
  const list = trialsOf(search.id);
  if (!metric) return sorted(list, "number.desc");
  let found = ranked.get(list);
  if (!found) {
    const cost = (each: Entry): number => {
      const value = each.metrics[metric];
      return typeof value === "number" && each.status !== "failed" ? sign * value : Infinity;
    };
    found = list
      .map((each) => ({ each, cost: cost(each) }))
      .sort((a, b) => (a.cost === b.cost ? (a.each.number ?? 0) - (b.each.number ?? 0) : a.cost - b.cost))
      .map(({ each }) => each);
    ranked.set(list, found);
  }
  return found;
}

/** Those of the selected runs that the filter leaves. Trials of a search that is closed are not hidden by a filter. */
export const visible = computed<string[]>(() => {
  if (!url.query.value && !url.status.value) return selection.value;
  const matches = matching();
  const shown = new Set(rows.value.map((row) => row.entry.id));
  return selection.value.filter((id) => shown.has(id) || (entries.has(id) && matches(entries.get(id)!)));
});

export const colours = computed(() => new Map(selection.value.map((id, k) => [id, k])));

export function select(ids: string[]): void {
  url.choose({ sel: ids.length ? ids.join(",") : "none" });
}

export function toggle(id: string): void {
  const now = selection.peek();
  select(now.includes(id) ? now.filter((each) => each !== id) : [...now, id]);
}
