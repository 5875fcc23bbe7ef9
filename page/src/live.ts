// The tab's one stream of events. Each event carries only what is new; cursors say what the page has already.

import { signal } from "@preact/signals";
import { address, get, Refused, type Axis, type Entry, type SeriesPart } from "./api";
import * as runs from "./runs";

export interface SeriesWish {
  run: string;
  metrics: string[];
  x: Axis;
  smooth: number;
  cursor: number;
}

export interface LogWish {
  run: string;
  rank: number;
  offset: number;
}

export interface RowsEvent {
  run: string;
  cursor: number;
  /** What was asked for; of some of it there may be nothing new. */
  metrics: string[];
  series: Record<string, SeriesPart>;
}

export interface LogsEvent extends LogWish {
  start: number;
  end: number;
  text: string;
}

/** lost: the server does not answer; refused: it does, but not to us. */
export const connection = signal<"connecting" | "open" | "lost" | "refused">("connecting");

/** The parts of the page that want something from the stream; set by them. */
export const wishes = {
  series: (): SeriesWish[] => [],
  logs: (): LogWish[] => [],
  rows: (_: RowsEvent): void => {},
  rewound: (_: string): void => {},
  text: (_: LogsEvent): void => {},
  reconnected: (): void => {},
};

/** Counts up when the server is back: what could not be loaded is asked for again. */
export const reconnections = signal(0);

const SETTLE_MS = 150;
const SILENCE_MS = 40_000;
const HIDDEN_MS = 5_000;
const RETRY_MS = 2_000;

let source: EventSource | null = null;
let subscribed = "";
let settling = 0;
let silence = 0;
let hidden = 0;
let failures = 0;

const identity = (): string =>
  JSON.stringify([
    wishes.series().map(({ run, metrics, x, smooth }) => [run, metrics, x, smooth]),
    wishes.logs().map(({ run, rank }) => [run, rank]),
  ]);

/** To be called whenever a wish may have changed. */
export function rethink(): void {
  clearTimeout(settling);
  settling = window.setTimeout(() => {
    if (runs.loaded.peek() && !document.hidden && (!source || identity() !== subscribed)) open();
  }, SETTLE_MS);
}

function open(): void {
  if (document.hidden) return; // a tab that was opened in the background; it is called again when somebody looks
  source?.close();
  subscribed = identity();
  const [series, logs] = [wishes.series(), wishes.logs()];
  const wanted = {
    list: runs.listCursor,
    series: series.length ? JSON.stringify(series) : "",
    logs: logs.length ? JSON.stringify(logs) : "",
  };
  const opened = new EventSource(address("live", wanted));
  source = opened;
  opened.onopen = () => {
    connection.value = "open";
    heard();
  };
  opened.onerror = () => {
    if (source === opened) failed();
  };
  const on = <T>(name: string, act: (data: T) => void): void =>
    opened.addEventListener(name, (event) => {
      if (source !== opened) return;
      heard();
      act(JSON.parse((event as MessageEvent<string>).data) as T);
    });
  on<{ entries: Entry[]; removed: string[]; cursor: string; reset?: boolean }>("list", (data) => {
    if (data.reset) void runs.load();
    else runs.update(data.entries, data.removed, data.cursor);
    rethink(); // a run has begun, or ended
  });
  on<Omit<RowsEvent, "metrics">>("rows", (data) => {
    const metrics = series.find((wish) => wish.run === data.run)?.metrics ?? [];
    wishes.rows({ ...data, metrics });
  });
  on<{ run: string }>("rewind", (data) => wishes.rewound(data.run));
  on<LogsEvent>("logs", (data) => wishes.text(data));
  on<unknown>("ping", () => {});
}

/** A server whose machine is gone does not close its connections: after a long silence the stream is opened again. */
function heard(): void {
  failures = 0;
  if (connection.peek() !== "open") connection.value = "open";
  clearTimeout(silence);
  silence = window.setTimeout(failed, SILENCE_MS);
}

function failed(): void {
  source?.close();
  source = null;
  clearTimeout(silence);
  setTimeout(() => void again(), failures++ ? RETRY_MS : 0);
}

/** Ask until the server answers. If it has been started anew, it may know other runs: the list is loaded again. */
async function again(): Promise<void> {
  try {
    await get("about");
    if (!source) {
      if (connection.peek() !== "open") await runs.load();
      open();
      reconnections.value++;
      wishes.reconnected();
    }
  } catch (error) {
    const refused = error instanceof Refused && error.status > 0 && error.status < 500;
    connection.value = refused ? "refused" : "lost";
    if (!source) setTimeout(() => void again(), RETRY_MS);
  }
}

// A browser gives each server six connections for all tabs together: a tab that nobody looks at gives its own back.
document.addEventListener("visibilitychange", () => {
  clearTimeout(hidden);
  if (document.hidden) {
    hidden = window.setTimeout(() => {
      source?.close();
      source = null;
      clearTimeout(silence);
    }, HIDDEN_MS);
  } else if (!source) rethink();
});

export function start(): void {
  void runs.load().then(() => {
    if (runs.loaded.peek()) open();
    else failed();
  });
}
