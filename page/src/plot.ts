// What all charts have in common: how axes look, and how the numbers on them are written.

import "./language";
import uPlot from "uplot";
import { colour } from "./ui";

export { uPlot };

/** A number on an axis: short, but long enough to tell it from its neighbours. */
function tick(given: number | null, step: number): string {
  if (given === null) return "";
  const size = Math.abs(given);
  if (size >= 1e6) return `${Number((given / 1e6).toPrecision(6))}M`;
  if (size >= 1e4) return `${Number((given / 1e3).toPrecision(6))}k`;
  if (size > 0 && size < 1e-3) return given.toExponential(step && step < size ? 1 : 0);
  return String(Number(given.toPrecision(6)));
}

export const ticks = (_: uPlot, splits: number[]): string[] =>
  splits.map((each) => tick(each, Math.abs((splits[1] ?? 0) - (splits[0] ?? 0))));

function shortTime(seconds: number): string {
  if (seconds < 120) return `${Number(seconds.toFixed(1))}s`;
  if (seconds < 7200) return `${Number((seconds / 60).toFixed(1))}m`;
  return `${Number((seconds / 3600).toFixed(2))}h`;
}

export const shortTimes = (_: uPlot, splits: number[]): string[] =>
  splits.map((each) => (each === null ? "" : shortTime(each)));

/** Steps between the numbers on an axis of seconds. */
export const TIME_STEPS = [
  0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 864000,
];

/** Clock times on an axis: hours and minutes, and the day where it changes. */
export const CLOCK: uPlot.Axis.Values = [
  [86400 * 28, "{YYYY}-{MM}", null, null, null, null, null, null, 1],
  [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", "\n{MM}-{DD}", null, null, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", "\n{MM}-{DD}", null, null, null, null, null, 1],
  [0.001, "{HH}:{mm}:{ss}.{fff}", "\n{MM}-{DD}", null, null, null, null, null, 1],
];

/** The look of an axis in the colours of now. */
export function axisLook(): uPlot.Axis {
  const grid = { stroke: colour("grid"), width: 1 };
  return { stroke: colour("quiet"), grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
}

/** Room for the numbers beside a y axis. */
export const yRoom = (_: uPlot, values: string[] | null): number =>
  Math.max(40, Math.min(92, 14 + 6.6 * Math.max(0, ...(values ?? []).map((each) => each?.length ?? 0))));
