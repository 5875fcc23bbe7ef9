// When each trial ran, including those that are running now.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Entry } from "./api";
import { duration } from "./format";
import { now, pageOf, title } from "./runs";
import { colour, theme, useSize } from "./ui";
import { carried, go, link } from "./url";

const MOST_HEIGHT = 220;
const AXIS = 20;

interface Bar {
  trial: Entry;
  lane: number;
  from: number;
  to: number | null;
}

/** Trials in as few lanes as ran at once. */
export function lanes(trials: Entry[]): { bars: Bar[]; count: number } {
  const begun = trials
    .filter((each) => each.started > 0 && each.status !== "pending")
    .sort((a, b) => a.started - b.started);
  const free: number[] = [];
  const bars = begun.map((trial): Bar => {
    const to = trial.ended ?? (trial.alive || trial.status === "running" ? null : trial.started + trial.seconds);
    let lane = free.findIndex((until) => until <= trial.started);
    if (lane < 0) lane = free.length;
    free[lane] = to ?? Infinity;
    return { trial, lane, from: trial.started, to };
  });
  return { bars, count: free.length };
}

const shadeOf = (status: string): string =>
  colour(["running", "finished", "failed", "killed"].includes(status) ? status : "quiet");

export function Timeline({ trials }: { trials: Entry[] }) {
  const [measure, { width }] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [pointed, point] = useState<{ bar: Bar; x: number; y: number } | null>(null);
  const { bars, count } = useMemo(() => lanes(trials), [trials]);
  const lane = Math.max(1, Math.min(16, Math.floor(MOST_HEIGHT / Math.max(1, count))));
  const height = lane * count + AXIS;
  const live = bars.some((bar) => bar.to === null);
  const begin = bars[0]?.from ?? 0;
  const end = live ? now.value : bars.reduce((most, bar) => Math.max(most, bar.to ?? 0), begin + 1);
  const across = (time: number) => ((time - begin) / (end - begin || 1)) * width;

  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context || width < 50) return;
    const scale = devicePixelRatio || 1;
    canvas.current!.width = width * scale;
    canvas.current!.height = height * scale;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    for (const bar of bars) {
      const [from, to] = [across(bar.from), across(bar.to ?? end)];
      context.fillStyle = shadeOf(bar.trial.status);
      context.globalAlpha = bar === pointed?.bar ? 1 : 0.6;
      context.fillRect(from, bar.lane * lane, Math.max(1, to - from - (to - from > 4 ? 1 : 0)), Math.max(1, lane - 1));
    }
    context.globalAlpha = 1;
    context.fillStyle = colour("quiet");
    context.font = "11px system-ui, sans-serif";
    for (let k = 0; k <= 4; k++) {
      context.textAlign = k === 0 ? "left" : k === 4 ? "right" : "center";
      context.fillText(k === 0 ? "0 s" : duration(((end - begin) * k) / 4), (width * k) / 4, height - 5);
    }
  }, [bars, width, height, end, theme.value, pointed?.bar]);

  const look = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = Math.floor(y / lane);
    const found = bars.find((bar) => bar.lane === row && across(bar.from) - 1 <= x && x <= across(bar.to ?? end) + 1);
    point(found ? { bar: found, x, y } : null);
  };
  if (!bars.length) return <p class="quiet">No trial has begun.</p>;
  return (
    <div class="timeline" ref={measure} style={{ height: `${height}px` }}>
      <canvas
        ref={canvas}
        style={{ width: `${width}px`, height: `${height}px` }}
        onPointerMove={look}
        onPointerLeave={() => point(null)}
        onClick={() => pointed && go(link(pageOf(pointed.bar.trial), carried()))}
      />
      {pointed ? (
        <div
          class="tip"
          style={
            pointed.x > width / 2
              ? { right: `${width - pointed.x + 12}px`, top: `${pointed.y}px` }
              : { left: `${pointed.x + 12}px`, top: `${pointed.y}px` }
          }
        >
          <b>{title(pointed.bar.trial)}</b>
          <div>
            {pointed.bar.trial.status} <b>{duration((pointed.bar.to ?? now.value) - pointed.bar.from)}</b>
          </div>
        </div>
      ) : null}
    </div>
  );
}
