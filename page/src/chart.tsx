// One chart: a metric of one or several runs.

import { effect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Axis } from "./api";
import { nearest } from "./decimate";
import { duration, moment, number } from "./format";
import { title, peek } from "./runs";
import { axisLook, CLOCK, shortTimes, ticks, TIME_STEPS, uPlot, yRoom } from "./plot";
import { demand, lineOf, refine, use, type Line } from "./series";
import { colour, COLOURS, lineColour, theme, useSize } from "./ui";
import { axis, choose, logX, logY, smoothing, zoom } from "./url";

const TOGETHER = "paceline";
const MOST_IN_TIP = 12;

export interface Curve {
  run: string;
  place: number;
}

interface Props {
  metric: string;
  curves: Curve[];
  height: number;
  /** Where retries began, on the axis of steps. */
  marks?: number[];
}

type Data = [number[], ...(number | null | undefined)[][]];

/** The curves of all runs over one common x; where a run has no point there, `undefined`, which is not a gap. */
function dataOf(
  lines: Line[],
  weight: number,
  range: [number, number] | null,
  positiveX: boolean,
  positiveY: boolean,
): Data {
  const tables = lines.map((line) => {
    const { xs, ys, smooth } = line.drawn(range, weight);
    const kept = weight ? [xs, ys, smooth ?? ys] : [xs, ys];
    if (!positiveX || xs.length === 0 || xs[0]! > 0) return kept;
    const first = xs.findIndex((x) => x > 0);
    return kept.map((column) => (first < 0 ? [] : column.slice(first)));
  });
  const joined = (tables.length === 1 ? tables[0]! : uPlot.join(tables as uPlot.AlignedData[])) as Data;
  if (!positiveY) return joined;
  return joined.map((column, k) =>
    k ? column.map((y) => (typeof y === "number" && y <= 0 ? null : y)) : column,
  ) as Data;
}

export const xText = (x: number, kind: Axis): string =>
  kind === "time" ? moment(x) : kind === "relative" ? duration(x) : `step ${number(Math.round(x))}`;

interface Look {
  kind: Axis;
  log: [boolean, boolean];
  weight: number;
}

function options(
  curves: Curve[],
  look: Look,
  size: { width: number; height: number },
  hooks: uPlot.Hooks.Arrays,
): uPlot.Options {
  const [logx, logy] = look.log;
  const shared = axisLook();
  const series: uPlot.Series[] = [{}];
  for (const { place } of curves) {
    const stroke = lineColour(place);
    const dash = place >= COLOURS ? [6, 3] : [];
    const shape = { stroke, dash, points: { show: fewPoints } };
    if (look.weight)
      series.push({ ...shape, alpha: 0.25, width: 1, points: { show: false } }, { ...shape, width: 1.75 });
    else series.push({ ...shape, width: 1.5 });
  }
  const values = look.kind === "time" ? CLOCK : look.kind === "relative" ? shortTimes : ticks;
  const steps = look.kind === "relative" && !logx ? { incrs: TIME_STEPS } : {};
  return {
    ...size,
    padding: [8, 10, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      // With smoothing, each run has two series: the cursor marks the smooth one.
      dataIdx: (u, series, at) => (look.weight && series % 2 ? null : nearby(u, series, at)),
      // Other charts follow the cursor, but only this one is zoomed with it: the zoom reaches them by the address.
      sync: {
        key: TOGETHER,
        scales: ["x", null],
        filters: { pub: (type) => type === "mousemove" || type === "mouseleave" },
      },
    },
    scales: {
      x: { time: look.kind === "time", distr: logx ? 3 : 1, range: (_, low, high) => rangeX(low, high, logx) },
      y: { distr: logy ? 3 : 1, range: (_, low, high) => rangeY(low, high, logy) },
    },
    axes: [
      { ...shared, ...steps, values, size: look.kind === "time" ? 38 : 28, space: look.kind === "time" ? 64 : 42 },
      { ...shared, values: ticks, size: yRoom, space: 28 },
    ],
    series,
    hooks,
  };
}

const REACH = 30;

/** The point of a curve that the cursor is at. Where a run has none nearby, it has none: it may have ended before. */
function nearby(u: uPlot, series: number, at: number): number {
  const column = u.data[series]!;
  if (series === 0 || typeof column[at] === "number") return at;
  const xs = u.data[0];
  const pointer = u.cursor.left ?? 0;
  const close = (k: number) => Math.abs(u.valToPos(xs[k]!, "x") - pointer) <= REACH;
  for (let [left, right] = [at - 1, at + 1]; ; left--, right++) {
    const [goLeft, goRight] = [left >= 0 && close(left), right < xs.length && close(right)];
    if (goLeft && typeof column[left] === "number") return left;
    if (goRight && typeof column[right] === "number") return right;
    if (!goLeft && !goRight) return at;
  }
}

const fewPoints = (u: uPlot, place: number): boolean => (u.data[place]?.length ?? 0) <= 2;

function rangeX(low: number | null, high: number | null, isLog: boolean): [number, number] {
  const wanted = zoom.peek();
  if (wanted && (!isLog || wanted[0] > 0)) return wanted;
  if (low === null || high === null) return [isLog ? 1 : 0, isLog ? 10 : 1];
  if (low === high) return isLog ? [low / 2, high * 2] : [low - 1, high + 1];
  return [low, high];
}

function rangeY(low: number | null, high: number | null, isLog: boolean): [number, number] {
  if (low === null || high === null) return isLog ? [0.1, 1] : [0, 1];
  if (isLog) return uPlot.rangeLog(low, high, 10, false) as [number, number];
  const room = high - low || Math.abs(high) || 1;
  return [low - 0.06 * room, high + 0.06 * room];
}

export function Chart({ metric, curves, height, marks }: Props) {
  const [measure, size] = useSize<HTMLDivElement>();
  const box = useRef<HTMLDivElement>(null);
  const tip = useRef<HTMLDivElement>(null);
  const reading = useRef<HTMLSpanElement>(null);
  const note = useRef<HTMLDivElement>(null);
  const width = Math.floor(size.width);
  const key = curves.map(({ run, place }) => `${run}.${place}`).join();

  useEffect(() => {
    if (width < 50) return;
    let plot: uPlot | null = null;
    let frame = 0;
    let hovered = false;
    let shape = "";
    let lines: Line[] = [];
    let released: (() => void)[] = [];

    const say = () => {
      if (!plot || !reading.current || !tip.current) return;
      const left = plot.cursor.left ?? -1;
      const x = left >= 0 ? plot.posToVal(left, "x") : null;
      const reach = Math.abs(plot.posToVal(left + REACH, "x") - (x ?? 0));
      const found = valuesAt(lines, curves, x, smoothing.peek(), reach);
      const first = found[0];
      if (curves.length === 1 && first) {
        reading.current.textContent =
          x === null ? number(first.y) : `${xText(first.x, axis.peek())}  ${number(first.y)}`;
      } else reading.current.textContent = x === null ? "" : xText(x, axis.peek());
      showTip(tip.current, plot, hovered && curves.length > 1 && x !== null ? found : []);
    };

    const draw = () => {
      frame = 0;
      if (!box.current) return;
      const look: Look = { kind: axis.peek(), log: [logX.peek(), logY.peek()], weight: smoothing.peek() };
      const data = dataOf(lines, look.weight, zoom.peek(), look.log[0], look.log[1]);
      const wanted = JSON.stringify([look.kind, look.log, !!look.weight, theme.peek()]);
      if (plot && wanted === shape) plot.setData(data as uPlot.AlignedData);
      else {
        plot?.destroy();
        shape = wanted;
        const hooks: uPlot.Hooks.Arrays = {
          setSelect: [
            (u) => {
              if (u.select.width < 4) return;
              const ends = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              choose({ zoom: ends.map((each) => Number(each.toPrecision(look.kind === "time" ? 13 : 7))).join(":") });
            },
          ],
          setCursor: [say],
          draw: marks?.length && look.kind === "step" ? [(u) => drawMarks(u, marks)] : [],
        };
        plot = new uPlot(options(curves, look, { width, height }, hooks), data as uPlot.AlignedData, box.current);
        plot.over.addEventListener("mouseenter", () => (hovered = true));
        plot.over.addEventListener("mouseleave", () => (hovered = false));
        plot.over.addEventListener("dblclick", () => choose({ zoom: "" }));
      }
      const loading = lines.some((line) => line.state === "loading");
      const problem = lines.find((line) => line.problem)?.problem;
      const empty = lines.every((line) => !line.xs.length);
      if (note.current)
        note.current.textContent = problem ?? (loading && empty ? "Loading …" : empty ? "No values yet." : "");
      const range = zoom.peek();
      box.current.dataset["finer"] = String(
        !!range && lines.some((line) => line.drawn(range, look.weight) === line.detail),
      );
      box.current.dataset["points"] = String(lines.reduce((sum, line) => sum + line.xs.length, 0));
      say();
    };

    let refining = 0;
    const stop = effect(() => {
      const [kind, weight, range] = [axis.value, smoothing.value, zoom.value];
      void [logX.value, logY.value, theme.value]; // the curve is drawn again when these change
      if (lines[0]?.axis !== kind) {
        released.forEach((release) => release());
        lines = curves.map(({ run }) => lineOf(run, metric, kind));
        released = lines.map(use);
      }
      for (const line of lines) {
        line.version.value;
        demand(line, weight);
      }
      clearTimeout(refining);
      if (range) refining = window.setTimeout(() => lines.forEach((line) => void refine(line, range, weight)), 120);
      frame ||= requestAnimationFrame(draw);
    });
    return () => {
      stop();
      released.forEach((release) => release());
      clearTimeout(refining);
      cancelAnimationFrame(frame);
      plot?.destroy();
    };
  }, [key, metric, width, height, marks?.join()]);

  return (
    <div class="chart" ref={measure} data-metric={metric}>
      <div class="chart-head">
        <bdi class="chart-name" title={metric}>
          {metric}
        </bdi>
        <span class="reading" ref={reading} />
      </div>
      <div class="plot" ref={box} style={{ height: `${height}px` }}>
        <div class="tip" ref={tip} hidden />
        <div class="note" ref={note} />
      </div>
    </div>
  );
}

function drawMarks(u: uPlot, marks: number[]): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = colour("warn");
  ctx.setLineDash([4, 4]);
  for (const mark of marks) {
    const x = Math.round(u.valToPos(mark, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

interface Found extends Curve {
  x: number;
  y: number | null;
}

/** What each curve is at x, or close to it; its last point without one. */
function valuesAt(lines: Line[], curves: Curve[], x: number | null, weight: number, reach: number): Found[] {
  const found: Found[] = [];
  lines.forEach((line, k) => {
    const { xs, ys, smooth } = line.drawn(zoom.peek(), weight);
    const at = x === null ? xs.length - 1 : nearest(xs, x);
    if (at >= 0 && (x === null || lines.length === 1 || Math.abs(xs[at]! - x) <= reach))
      found.push({ ...curves[k]!, x: xs[at]!, y: (smooth ?? ys)[at] ?? null });
  });
  return found;
}

function showTip(tip: HTMLDivElement, plot: uPlot, found: Found[]): void {
  tip.hidden = found.length === 0;
  if (!found.length) return;
  const pointed = plot.posToVal(plot.cursor.top ?? 0, "y");
  const byValue = found.filter((each) => each.y !== null).sort((a, b) => b.y! - a.y!);
  const closest = byValue.reduce(
    (best, each) => (Math.abs(each.y! - pointed) < Math.abs(best.y! - pointed) ? each : best),
    byValue[0]!,
  );
  const from = Math.max(0, Math.min(byValue.indexOf(closest) - MOST_IN_TIP / 2, byValue.length - MOST_IN_TIP));
  tip.replaceChildren(
    ...byValue.slice(from, from + MOST_IN_TIP).map((each) => {
      const row = document.createElement("div");
      row.className = each === closest ? "closest" : "";
      const swatch = document.createElement("i");
      swatch.style.background = lineColour(each.place);
      const name = document.createElement("bdi");
      const entry = peek(each.run);
      name.textContent = entry ? title(entry) : each.run;
      const text = document.createElement("b");
      text.textContent = number(each.y);
      row.append(swatch, name, text);
      return row;
    }),
  );
  const left = (plot.cursor.left ?? 0) + plot.over.offsetLeft;
  const flip = left > plot.width * 0.55;
  tip.style.left = flip ? "" : `${left + 14}px`;
  tip.style.right = flip ? `${plot.width - left + 14}px` : "";
}
