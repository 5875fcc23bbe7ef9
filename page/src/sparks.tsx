// The small curves in the list: fetched for rows on the screen, then extended by what the list's events say.

import { signal } from "@preact/signals";
import { get, type Entry } from "./api";
import { m4 } from "./decimate";

export interface Spark {
  xs: number[];
  ys: (number | null)[];
  low: number;
  high: number;
}

const POINTS = 40;
const AT_ONCE = 100;
const WAIT_MS = 60;
const WIDTH = 96;
const HEIGHT = 20;

const known = new Map<string, Spark | null>();
/** At which iteration a run had nothing to show yet. */
const empty = new Map<string, number>();
const wanted = new Map<string, Set<string>>();
const arrived = signal(0);
let waiting = 0;

/** The curve of a run, as far as it is known; asks for it if it is not. */
export function sparkOf(entry: Entry, metric: string): Spark | null {
  arrived.value;
  if (!metric) return null;
  const key = `${entry.id}\n${metric}`;
  const spark = known.get(key);
  const value = entry.metrics[metric] ?? null;
  if (spark === undefined || (spark === null && value !== null && empty.get(key) !== entry.iteration)) {
    empty.set(key, entry.iteration);
    known.set(key, null);
    const ids = wanted.get(metric) ?? new Set();
    wanted.set(metric, ids.add(entry.id));
    waiting ||= window.setTimeout(() => void ask(), WAIT_MS);
    return null;
  }
  if (spark && value !== null && entry.iteration > (spark.xs[spark.xs.length - 1] ?? -1))
    grow(spark, entry.iteration, value);
  return spark;
}

function grow(spark: Spark, x: number, y: number): void {
  spark.xs.push(x);
  spark.ys.push(y);
  spark.low = Math.min(spark.low, y);
  spark.high = Math.max(spark.high, y);
  if (spark.xs.length > 8 * POINTS) {
    const kept = m4(spark.xs, spark.ys, POINTS);
    spark.xs = kept.map((k) => spark.xs[k]!);
    spark.ys = kept.map((k) => spark.ys[k]!);
  }
}

async function ask(): Promise<void> {
  waiting = 0;
  const asked = [...wanted];
  wanted.clear();
  for (const [metric, all] of asked) {
    const ids = [...all];
    for (let k = 0; k < ids.length; k += AT_ONCE) {
      const some = ids.slice(k, k + AT_ONCE);
      const answer = await get<Record<string, [number[], (number | null)[]] | null>>("sparks", {
        ids: some.join(","),
        metric,
        points: POINTS,
      }).catch(() => null);
      if (answer) for (const id of some) known.set(`${id}\n${metric}`, made(answer[id] ?? null));
    }
  }
  arrived.value++;
}

function made(pair: [number[], (number | null)[]] | null): Spark | null {
  const [xs, ys] = pair ?? [[], []];
  if (!xs.length) return null;
  let [low, high] = [Infinity, -Infinity];
  for (const y of ys) {
    if (y === null) continue;
    if (y < low) low = y;
    if (y > high) high = y;
  }
  return { xs, ys, low, high };
}

/** A retry may have superseded what is known of a run. */
export function forget(id: string): void {
  for (const key of known.keys()) if (key.startsWith(`${id}\n`)) known.delete(key);
}

export function Sparkline({ spark, stroke }: { spark: Spark | null; stroke: string }) {
  if (!spark || spark.low > spark.high) return <svg class="spark" width={WIDTH} height={HEIGHT} aria-hidden="true" />;
  const { xs, ys, low, high } = spark;
  const [from, to] = [xs[0]!, xs[xs.length - 1]!];
  const across = (x: number) => (to > from ? ((x - from) / (to - from)) * (WIDTH - 2) + 1 : WIDTH / 2);
  const down = (y: number) => (high > low ? HEIGHT - 2 - ((y - low) / (high - low)) * (HEIGHT - 4) : HEIGHT / 2);
  let path = "";
  let pen = "M";
  ys.forEach((y, k) => {
    if (y === null) pen = "M";
    else {
      path += `${pen}${across(xs[k]!).toFixed(1)} ${down(y).toFixed(1)}`;
      pen = "L";
    }
  });
  if (xs.length === 1) path += "h0.1";
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} aria-hidden="true">
      <path d={path} fill="none" stroke={stroke} />
    </svg>
  );
}
