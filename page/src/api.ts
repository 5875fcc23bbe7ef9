// The server's answers, and how they are asked for.

export type Kind = "run" | "search" | "trial" | "damaged";
export type Axis = "step" | "time" | "relative";
export type Plain = null | boolean | number | string | Plain[] | { [key: string]: Plain };

/** A line of the list: a run, a search, a trial, or something that cannot be read. */
export interface Entry {
  id: string;
  kind: Kind;
  parent: string | null;
  name: string;
  trial_id: string;
  trainer: string;
  status: string;
  alive: boolean;
  workers: number;
  started: number;
  ended: number | null;
  iteration: number;
  seconds: number;
  metrics: Record<string, number | null>;
  /** Of the best checkpoint; of a search, the metrics of its best trial. */
  best: Record<string, number | null>;
  size: number;
  checkpoints: number;
  error: string;
  params: Record<string, Plain>;
  metric: string | string[] | null;
  mode: string | string[] | null;
  /** Of a search: how many trials there will be; null if nobody knows. */
  total: number | null;
  path: string;
  number: number | null;
  attempts: number;
  /** Of a search: how many trials have which status. */
  counts: Record<string, number>;
}

export interface About {
  version: string;
  root: string;
  hostname: string;
  read_only: boolean;
}

export interface Attempt {
  attempt: number;
  start_index: number;
  /** Seconds of training before it. */
  start_time_s: number;
  world_size: number;
  time: number;
  hostname: string;
  pid: number;
}

export interface Failure {
  attempt: number;
  rank: number;
  cause: string;
  message: string;
  traceback: string;
}

export interface CheckpointFacts {
  number: number;
  iteration: number;
  score: number | null;
  size: number;
  kept: boolean;
  damaged: boolean;
  /** The run did not delete it, but it is not there. */
  missing: boolean;
  time: number | null;
}

export interface ValidationFacts {
  /** Of the checkpoint. */
  number: number;
  attempt: number;
  state: "pending" | "done" | "failed";
  error: string;
}

interface Summary {
  path: string;
  name: string;
  trial_id: string;
  trainer: string;
  status: string;
  alive: boolean;
  num_workers: number;
  started: number;
  ended: number | null;
  error: string;
  reached: {
    iteration: number;
    time_total_s: number;
    attempts: number;
    metrics: { [key: string]: Plain };
    checkpoints: number[];
    size: number;
  };
}

/** Everything about one run except its rows. */
export interface Facts {
  kind: Kind;
  parent: string | null;
  summary: Summary;
  config: Plain;
  settings: Plain;
  attempts: Attempt[];
  failures: Failure[];
  /** Of the rank that caused the last failure, which need not be rank 0; null if it reported nothing. */
  last_report: { rank: number; iteration: number; metrics: { [key: string]: Plain } } | null;
  checkpoints: CheckpointFacts[];
  /** In the order in which they were requested. */
  validations: ValidationFacts[];
  how_to_continue: string;
  warnings: string[];
  ranks: number[];
  metrics: string[];
}

export interface SeriesPart {
  x: number[];
  y: (number | null)[];
  smooth: (number | null)[] | null;
  complete?: boolean;
}

export interface SeriesAnswer {
  run: string;
  cursor: number;
  series: Record<string, SeriesPart>;
}

export interface LogPart {
  start: number;
  end: number;
  size: number;
  text: string;
  older: boolean;
}

export interface MergedLogs {
  lines: { rank: number; time: number | null; text: string }[];
  starts: Record<string, number>;
  ends: Record<string, number>;
  older: boolean;
}

export interface LogHit {
  rank: number;
  offset: number;
  time: number | null;
  text: string;
}

export interface LogHits {
  hits: LogHit[];
  /** The logs were searched to their end, and all hits are here. */
  complete: boolean;
}

export interface Rank {
  rank: number;
  [measured: string]: number | string | null;
}

export interface Domain {
  kind: "float" | "int" | "choice";
  log: boolean;
  low?: number;
  high?: number;
}

export interface SearchFacts {
  space?: Record<string, Domain>;
  importance: Record<string, number> | null;
  why: string;
  /** The importances are being computed. */
  pending?: boolean;
  continue?: string;
}

export interface Comparison {
  differing: Record<string, Record<string, Plain>>;
  same: number;
}

/** What the server said instead of an answer. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export type Query = Record<string, string | number | string[] | null | undefined>;

export function address(path: string, query: Query = {}): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) value.forEach((each) => given.append(name, each));
    else if (value !== null && value !== undefined && value !== "") given.set(name, String(value));
  }
  const text = given.toString();
  return `/api/${path}${text ? `?${text}` : ""}`;
}

async function asked<T>(url: string, init: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...init });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer.");
  }
  if (response.ok) return (await response.json()) as T;
  const body: unknown = await response.json().catch(() => null);
  const detail = body && typeof body === "object" && "detail" in body ? String(body.detail) : response.statusText;
  throw new Refused(response.status, detail || `The server answered ${response.status}.`);
}

export const get = <T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> =>
  asked<T>(address(path, query), signal ? { signal } : {});

const token = () => document.querySelector<HTMLMetaElement>('meta[name="paceline-token"]')?.content ?? "";

/** Requests that change something, or ask a live run for something, carry the page's own token. */
export const post = <T>(path: string): Promise<T> =>
  asked<T>(`/api/${path}`, { method: "POST", headers: { "X-Paceline-Token": token() } });

/** The entries of a list, which may come as columns to keep 10,000 trials small. */
export function entriesOf(answer: { entries?: Entry[]; columns?: string[]; rows?: unknown[][] }): Entry[] {
  if (answer.entries) return answer.entries;
  const columns = answer.columns ?? [];
  return (answer.rows ?? []).map(
    (row) => Object.fromEntries(columns.map((name, k) => [name, row[k]])) as unknown as Entry,
  );
}
