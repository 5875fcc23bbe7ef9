// Parallel coordinates: a line for each trial, an axis for each parameter and for the metric. Axes can be brushed.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Domain, Entry, Plain } from "./api";
import { number, shown } from "./format";
import { pageOf, title } from "./runs";
import { colour, theme, useSize } from "./ui";
import { brush, carried, choose, go, link } from "./url";

const HEIGHT = 260;
const TOP = 34;
const BOTTOM = 16;
const SIDE = 46;
const LABELS = 4;
const REACH = 8;

export interface Dimension {
  key: string;
  value: (trial: Entry) => Plain | undefined;
  /** Of numbers: their ends and whether the axis is logarithmic; of others: all values. */
  low: number;
  high: number;
  log: boolean;
  values: string[] | null;
}

const MOST_VALUES = 40;

/** An axis for what the trials have. The search says which parameters were drawn on a log scale; else the values do. */
export function dimension(key: string, trials: Entry[], value: Dimension["value"], domain?: Domain): Dimension | null {
  const found = trials.map(value).filter((each) => each !== undefined && each !== null);
  if (!found.length) return null;
  const numbers = found.filter((each): each is number => typeof each === "number" && Number.isFinite(each));
  if (numbers.length < found.length || domain?.kind === "choice") {
    const values = [...new Set(found.map(text))];
    if (numbers.length === found.length) values.sort((a, b) => Number(a) - Number(b));
    else values.sort();
    if (values.length <= MOST_VALUES)
      return { key, value, low: 0, high: Math.max(1, values.length - 1), log: false, values };
    if (!numbers.length) return null;
  }
  let [low, high] = [Infinity, -Infinity];
  for (const each of numbers) {
    if (each < low) low = each;
    if (each > high) high = each;
  }
  const log = low > 0 && (domain ? domain.log : high / low > 200);
  return { key, value, low, high, log, values: null };
}

const text = (value: Plain | undefined): string => (typeof value === "string" ? value : JSON.stringify(value));

/** Where on the axis a trial is, from 0 (bottom) to 1; null if it has no value. */
export function placeOn(axis: Dimension, trial: Entry): number | null {
  const value = axis.value(trial);
  if (value === undefined || value === null) return null;
  if (axis.values) {
    const at = axis.values.indexOf(text(value));
    return at < 0 ? null : axis.values.length === 1 ? 0.5 : at / axis.high;
  }
  if (typeof value !== "number" || !Number.isFinite(value)) return null;
  if (axis.high === axis.low) return 0.5;
  if (axis.log) return Math.log(value / axis.low) / Math.log(axis.high / axis.low);
  return (value - axis.low) / (axis.high - axis.low);
}

function valueAt(axis: Dimension, place: number): string {
  if (axis.values) return axis.values[Math.round(place * axis.high)] ?? "";
  return number(axis.log ? axis.low * (axis.high / axis.low) ** place : axis.low + place * (axis.high - axis.low));
}

/** Brushes are parts of axes from 0 to 1, by the axis' key. */
export type Brushes = Record<string, [number, number]>;

export function brushes(): Brushes {
  try {
    const given: unknown = JSON.parse(brush.value || "{}");
    return given && typeof given === "object" ? (given as Brushes) : {};
  } catch {
    return {};
  }
}

export function within(axes: Dimension[], limits: Brushes): (trial: Entry) => boolean {
  const brushed = axes.filter((axis) => Array.isArray(limits[axis.key]));
  return (trial) =>
    brushed.every((axis) => {
      const place = placeOn(axis, trial);
      const [from, to] = limits[axis.key]!;
      return place !== null && place >= from && place <= to;
    });
}

function mixed(from: string, to: string, share: number): string {
  return `color-mix(in oklab, ${from} ${Math.round((1 - share) * 100)}%, ${to})`;
}

export function Parallel({ trials, axes, sign }: { trials: Entry[]; axes: Dimension[]; sign: 1 | -1 }) {
  const [measure, { width }] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const limits = brushes();
  const [pulled, pull] = useState<{ key: string; from: number; to: number } | null>(null);
  const [pointed, point] = useState<{ trial: Entry; x: number; y: number } | null>(null);
  const shownLimits: Brushes = pulled
    ? { ...limits, [pulled.key]: [Math.min(pulled.from, pulled.to), Math.max(pulled.from, pulled.to)] }
    : limits;
  const across = (k: number) => SIDE + (k * (width - 2 * SIDE)) / Math.max(1, axes.length - 1);
  const down = (place: number) => HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM);
  const places = useMemo(() => trials.map((trial) => axes.map((axis) => placeOn(axis, trial))), [trials, axes]);

  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context || width < 50) return;
    const scale = devicePixelRatio || 1;
    canvas.current!.width = width * scale;
    canvas.current!.height = HEIGHT * scale;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    const kept = within(axes, shownLimits);
    const [good, poor, none] = [colour("best"), colour("worst"), colour("grid")];
    // By quality, so that the best lie on top; trials that a brush leaves out are all below.
    const last = axes.length - 1;
    const rank = (k: number) => places[k]![last] ?? null;
    const order = trials.map((_, k) => k).sort((a, b) => ((rank(b) ?? 2) - (rank(a) ?? 2)) * sign);
    const shades = Array.from({ length: 21 }, (_, k) => mixed(good, poor, k / 20));
    const passes = [order.filter((k) => !kept(trials[k]!)), order.filter((k) => kept(trials[k]!))];
    passes.forEach((members, front) => {
      context.globalAlpha = front ? Math.max(0.12, Math.min(0.8, 60 / members.length)) : 0.35;
      for (const k of members) {
        const place = rank(k);
        context.strokeStyle =
          !front || place === null ? none : shades[Math.round((sign === 1 ? place : 1 - place) * 20)]!;
        stroke(context, places[k]!, across, down);
      }
    });
    if (pointed) {
      context.globalAlpha = 1;
      context.lineWidth = 2.5;
      context.strokeStyle = colour("ink");
      stroke(context, places[trials.indexOf(pointed.trial)] ?? [], across, down);
    }
  }, [places, axes, width, JSON.stringify(shownLimits), sign, theme.value, pointed?.trial]);

  const placeOf = (event: PointerEvent): number => {
    const box = canvas.current!.getBoundingClientRect();
    return Math.max(0, Math.min(1, (HEIGHT - BOTTOM - (event.clientY - box.top)) / (HEIGHT - TOP - BOTTOM)));
  };
  const finish = () => {
    if (!pulled) return;
    const [from, to] = [Math.min(pulled.from, pulled.to), Math.max(pulled.from, pulled.to)];
    const next = { ...limits };
    if (to - from < 0.01) delete next[pulled.key];
    else next[pulled.key] = [Number(from.toFixed(3)), Number(to.toFixed(3))];
    choose({ brush: Object.keys(next).length ? JSON.stringify(next) : "" });
    pull(null);
  };
  const look = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const found = closest(places, x, y, across, down, axes.length);
    point(found === null || !within(axes, limits)(trials[found]!) ? null : { trial: trials[found]!, x, y });
  };
  return (
    <div class="parallel" ref={measure} style={{ height: `${HEIGHT}px` }}>
      <canvas
        ref={canvas}
        style={{ width: `${width}px`, height: `${HEIGHT}px` }}
        onPointerMove={look}
        onPointerLeave={() => point(null)}
        onClick={() => pointed && go(link(pageOf(pointed.trial), carried()))}
      />
      {axes.map((axis, k) => {
        const limit = shownLimits[axis.key];
        const labels =
          axis.values && axis.values.length <= 8
            ? axis.values.map((_, n) => (axis.values!.length === 1 ? 0.5 : n / axis.high))
            : Array.from({ length: LABELS + 1 }, (_, n) => n / LABELS);
        return (
          <div
            key={axis.key}
            class="axis"
            style={{ left: `${across(k)}px`, top: `${TOP}px`, height: `${HEIGHT - TOP - BOTTOM}px` }}
            onPointerDown={(event) => {
              event.currentTarget.setPointerCapture(event.pointerId);
              pull({ key: axis.key, from: placeOf(event), to: placeOf(event) });
            }}
            onPointerMove={(event) => pulled?.key === axis.key && pull({ ...pulled, to: placeOf(event) })}
            onPointerUp={finish}
          >
            <bdi class="axis-name" title={axis.log ? `${axis.key} (log)` : axis.key}>
              {axis.key}
              {axis.log ? <small> log</small> : null}
            </bdi>
            {labels.map((place) => (
              <span
                key={place}
                class={`axis-label ${k === axes.length - 1 ? "left" : ""}`}
                style={{ bottom: `${place * 100}%` }}
              >
                {valueAt(axis, place)}
              </span>
            ))}
            {limit ? (
              <i class="brush" style={{ bottom: `${limit[0] * 100}%`, height: `${(limit[1] - limit[0]) * 100}%` }} />
            ) : null}
          </div>
        );
      })}
      {pointed ? (
        <div
          class="tip"
          style={
            pointed.x > width / 2
              ? { right: `${width - pointed.x + 12}px`, top: `${pointed.y}px` }
              : { left: `${pointed.x + 12}px`, top: `${pointed.y}px` }
          }
        >
          <b>{title(pointed.trial)}</b>
          {axes.map((axis) => (
            <div key={axis.key}>
              <bdi>{axis.key}</bdi>
              <b>{shown(axis.value(pointed.trial))}</b>
            </div>
          ))}
        </div>
      ) : null}
    </div>
  );
}

function stroke(
  context: CanvasRenderingContext2D,
  places: (number | null)[],
  across: (k: number) => number,
  down: (place: number) => number,
): void {
  context.beginPath();
  let pen = false;
  places.forEach((place, k) => {
    if (place === null) pen = false;
    else if (pen) context.lineTo(across(k), down(place));
    else {
      context.moveTo(across(k), down(place));
      pen = true;
    }
  });
  context.stroke();
}

/** The trial whose line passes closest to a point. */
function closest(
  places: (number | null)[][],
  x: number,
  y: number,
  across: (k: number) => number,
  down: (place: number) => number,
  count: number,
): number | null {
  const gap = count > 1 ? across(1) - across(0) : 1;
  const left = Math.max(0, Math.min(count - 2, Math.floor((x - SIDE) / gap)));
  const share = (x - across(left)) / gap;
  let [best, found] = [REACH, null as number | null];
  places.forEach((each, k) => {
    const [a, b] = [each[left], each[left + 1]];
    if (a === null || b === null || a === undefined || b === undefined) return;
    const away = Math.abs(down(a + share * (b - a)) - y);
    if (away < best) [best, found] = [away, k];
  });
  return found;
}
