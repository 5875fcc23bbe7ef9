// The curves that the page has: fetched once, then extended by what the stream brings.

import { signal, type Signal } from "@preact/signals";
import { get, Refused, type Axis, type SeriesAnswer, type SeriesPart } from "./api";
import { ema, m4 } from "./decimate";
import { rethink, wishes, type RowsEvent, type SeriesWish } from "./live";
import { peek } from "./runs";
import * as url from "./url";

/** Columns of pixels that a curve is thinned to, at most four points for each. */
const PIXELS = 800;
/** Points that may gather before a growing curve is thinned again. */
const MOST_POINTS = 8 * PIXELS;
const TOGETHER_MS = 20;
const RESTING_MS = 150;
/** Lines that are kept, also those that no chart shows at the moment. */
const MOST_LINES = 1_000;
/** Runs whose new rows a tab gets; the server refuses a stream that asks for more (paceline/view/page/live.py). */
const MOST_GROWING = 30;
const METRICS_PER_REQUEST = 20;
/** A run that has ended may still have rows on the way. */
const LATE_MS = 10_000;

interface Points {
  xs: number[];
  ys: (number | null)[];
  smooth: (number | null)[] | null;
}

export class Line implements Points {
  xs: number[] = [];
  ys: (number | null)[] = [];
  smooth: (number | null)[] | null = null;
  /** Every row of the run that has this metric is here. */
  complete = true;
  /** The weight that `smooth` was computed with. */
  weight = 0;
  /** Thinned for a logarithmic x axis. */
  log = false;
  cursor = 0;
  state: "new" | "loading" | "ready" = "new";
  problem = "";
  /** The smoothing and axis of the request that is under way, or failed. */
  asked = "";
  /** Finer points of the part that is zoomed into. */
  detail: (Points & { from: number; to: number; weight: number }) | null = null;
  detailWanted = "";
  users = 0;
  /** The run may still add rows. */
  open = true;
  endedAt = 0;
  readonly version: Signal<number> = signal(0);

  constructor(
    readonly run: string,
    readonly metric: string,
    readonly axis: Axis,
  ) {}

  /** What a chart draws: the whole curve, or the finer part of it if there is one. */
  drawn(zoom: [number, number] | null, weight: number): Points {
    const { detail } = this;
    if (zoom && !this.complete && detail && detail.from <= zoom[0] && detail.to >= zoom[1]) return detail;
    if (!this.complete || !weight) return { xs: this.xs, ys: this.ys, smooth: weight ? this.smooth : null };
    if (this.weight !== weight || this.smooth?.length !== this.ys.length) {
      this.smooth = ema(this.ys, weight);
      this.weight = weight;
    }
    return this;
  }
}

const lines = new Map<string, Line>();
const key = (run: string, metric: string, axis: Axis): string => `${run}\n${axis}\n${metric}`;

export function lineOf(run: string, metric: string, axis: Axis): Line {
  const name = key(run, metric, axis);
  const line = lines.get(name) ?? new Line(run, metric, axis);
  lines.delete(name);
  lines.set(name, line); // the ones that were shown last are at the end
  return line;
}

/** A chart shows the line from now on, until it calls what it gets back. */
export function use(line: Line): () => void {
  line.users++;
  demand(line, url.smoothing.peek());
  rethink();
  return () => {
    line.users--;
    makeRoom();
    rethink();
  };
}

/** Whoever looks at thousands of runs in one tab has the ones of long ago fetched again. */
function makeRoom(): void {
  for (const [name, line] of lines) {
    if (lines.size <= MOST_LINES) return;
    if (!line.users) lines.delete(name);
  }
}

/** See to it that the line is there, with this smoothing. Complete lines are smoothed here, without a request. */
export function demand(line: Line, weight: number): void {
  const log = url.logX.peek();
  const fits = (!weight || line.weight === weight) && line.log === log;
  const wish = `${weight} ${log}`;
  if ((line.state === "ready" && (line.complete || fits)) || line.asked === wish) return;
  line.asked = wish;
  queue.set(line, weight);
  if (line.state === "new") line.state = "loading";
  clearTimeout(collecting); // while a slider is moved, nothing is asked for
  collecting = window.setTimeout(flush, line.state === "loading" ? TOGETHER_MS : RESTING_MS);
}

const queue = new Map<Line, number>();
let collecting = 0;

/** Charts that come into view together ask together: one request for all metrics of a run. */
function flush(): void {
  const groups = new Map<string, [Line[], number]>();
  for (const [line, weight] of queue) {
    const name = `${line.run} ${line.axis} ${weight}`;
    const group = groups.get(name);
    if (group) group[0].push(line);
    else groups.set(name, [[line], weight]);
  }
  queue.clear();
  for (const [members, weight] of groups.values())
    for (let k = 0; k < members.length; k += METRICS_PER_REQUEST)
      void fetchTogether(members.slice(k, k + METRICS_PER_REQUEST), weight);
}

async function fetchTogether(members: Line[], weight: number): Promise<void> {
  const { run, axis } = members[0]!;
  const log = url.logX.peek();
  const metric = members.map((line) => line.metric);
  const wanted = { run, metric, x: axis, pixels: PIXELS, smooth: weight || null, log: log ? 1 : null };
  try {
    const answer = await get<SeriesAnswer>("series", wanted);
    for (const line of members) {
      const part = answer.series[line.metric];
      fill(line, part ?? { x: [], y: [], smooth: null, complete: true }, answer.cursor, weight, log);
    }
  } catch (error) {
    for (const line of members) {
      if (line.state === "loading") line.state = "new";
      line.problem = error instanceof Refused ? error.message : String(error);
      line.version.value++;
    }
  }
  rethink();
}

function fill(line: Line, part: SeriesPart, cursor: number, weight: number, log: boolean): void {
  line.xs = part.x;
  line.ys = part.y;
  line.smooth = part.smooth;
  line.complete = part.complete ?? part.x.length < PIXELS;
  line.weight = weight;
  line.log = log;
  line.cursor = cursor;
  line.detail = null;
  line.detailWanted = "";
  line.problem = "";
  line.asked = "";
  line.state = "ready";
  line.open = peek(line.run)?.alive ?? true;
  line.version.value++;
}

/** Fetch the finer points of what is zoomed into. */
export async function refine(line: Line, zoom: [number, number], weight: number): Promise<void> {
  const wish = `${zoom.join()} ${weight}`;
  if (line.complete || line.state !== "ready" || line.detailWanted === wish) return;
  line.detailWanted = wish;
  const [from, to] = zoom;
  const wanted = { run: line.run, metric: line.metric, x: line.axis, pixels: PIXELS, smooth: weight || null, from, to };
  const answer = await get<SeriesAnswer>("series", wanted).catch(() => null);
  const part = answer?.series[line.metric];
  if (!part || line.detailWanted !== wish) return;
  line.detail = { from, to, weight, xs: part.x, ys: part.y, smooth: part.smooth };
  line.version.value++;
}

// ---------------------------------------------------------------- rows that come

function extend(points: Points, part: SeriesPart, first: number): void {
  for (let k = first; k < part.x.length; k++) {
    points.xs.push(part.x[k]!);
    points.ys.push(part.y[k] ?? null);
    points.smooth?.push(part.smooth?.[k] ?? null);
  }
}

function append(line: Line, part: SeriesPart): void {
  const last = line.xs[line.xs.length - 1];
  let first = 0;
  // The stream is asked from the oldest cursor of a run's metrics: some of it may be known.
  while (last !== undefined && first < part.x.length && part.x[first]! <= last) first++;
  if (first === part.x.length) return;
  const { detail } = line;
  if (detail && part.x[first]! <= detail.to) extend(detail, part, first);
  if (line.complete) line.smooth = null;
  extend(line, part, first);
  if (line.xs.length > MOST_POINTS) thin(line);
  line.version.value++;
}

function thin(line: Line): void {
  if (line.complete && url.smoothing.peek()) {
    line.weight = url.smoothing.peek();
    line.smooth = ema(line.ys, line.weight);
  }
  const kept = m4(line.xs, line.ys, PIXELS);
  line.xs = kept.map((k) => line.xs[k]!);
  line.smooth = line.smooth && kept.map((k) => line.smooth![k] ?? null);
  line.ys = kept.map((k) => line.ys[k]!);
  line.complete = false;
}

wishes.rows = ({ run, cursor, metrics, series }: RowsEvent): void => {
  for (const metric of metrics) {
    const line = lines.get(key(run, metric, url.axis.peek()));
    if (line?.state !== "ready") continue;
    const part = series[metric];
    if (part) append(line, part);
    line.cursor = Math.max(line.cursor, cursor);
  }
};

wishes.reconnected = (): void => {
  for (const line of lines.values()) {
    if (!line.problem) continue;
    line.problem = line.asked = "";
    if (line.users) demand(line, url.smoothing.peek());
  }
};

/** A retry has superseded rows that the page has. */
wishes.rewound = (run: string): void => {
  for (const line of lines.values()) {
    if (line.run !== run) continue;
    line.state = "new";
    line.asked = "";
    if (line.users) demand(line, url.smoothing.peek());
  }
};

function mayGrow(line: Line): boolean {
  if (peek(line.run)?.alive) {
    line.open = true;
    line.endedAt = 0;
  } else if (line.open) {
    line.endedAt ||= Date.now();
    line.open = Date.now() - line.endedAt < LATE_MS;
  }
  return line.open;
}

wishes.series = (): SeriesWish[] => {
  const found = new Map<string, SeriesWish>();
  for (const line of lines.values()) {
    const { run, axis, metric, cursor } = line;
    if (!line.users || line.state !== "ready" || axis !== url.axis.peek() || !mayGrow(line)) continue;
    const wish = found.get(run);
    if (wish) {
      wish.metrics.push(metric);
      wish.cursor = Math.min(wish.cursor, cursor);
    } else found.set(run, { run, metrics: [metric], x: axis, smooth: url.smoothing.peek(), cursor });
  }
  for (const wish of found.values()) wish.metrics.sort();
  return [...found.values()].slice(0, MOST_GROWING).sort((a, b) => (a.run < b.run ? -1 : 1));
};
