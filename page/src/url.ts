// What is shown is in the address: which page, and every choice made on it. A reload or a shared link shows the same.

import { computed, signal, type ReadonlySignal } from "@preact/signals";
import type { Axis } from "./api";

interface Place {
  path: string;
  query: URLSearchParams;
}

const read = (): Place => ({ path: location.pathname, query: new URLSearchParams(location.search) });

export const here = signal<Place>(read());

/** A link to a page of ours. Commas and slashes stay readable. */
export function link(path: string, query: Record<string, string> = {}): string {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return path + (text ? `?${text.replaceAll("%2C", ",").replaceAll("%2F", "/").replaceAll("%3A", ":")}` : "");
}

export function go(target: string): void {
  write();
  history.pushState(null, "", target);
  here.value = read();
  scrollTo(0, 0);
}

// Browsers limit how often a page may change its address, and a slider does so with every step.
const WRITE_MS = 120;
let writing = 0;
let written = 0;

function write(): void {
  clearTimeout(writing);
  written = performance.now();
  const { path, query } = here.value;
  const target = link(path, Object.fromEntries(query));
  if (target !== location.pathname + location.search) history.replaceState(null, "", target);
}

/** Change some of the choices; an empty text is the default and leaves the address. */
export function choose(changes: Record<string, string>): void {
  const { path, query } = here.peek();
  const changed = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value) changed.set(name, value);
    else changed.delete(name);
  }
  here.value = { path, query: changed };
  clearTimeout(writing);
  const wait = written + WRITE_MS - performance.now();
  if (wait <= 0) write();
  else writing = window.setTimeout(write, wait);
}

addEventListener("popstate", () => {
  clearTimeout(writing);
  here.value = read();
});
addEventListener("pagehide", write);

// Links to our own pages do not load the page again.
document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
    return;
  const anchor = event.target instanceof Element ? event.target.closest("a") : null;
  if (!anchor || anchor.target || anchor.hasAttribute("download") || anchor.origin !== location.origin) return;
  if (anchor.pathname.startsWith("/api/")) return;
  event.preventDefault();
  go(anchor.pathname + anchor.search);
});

const text = (name: string): ReadonlySignal<string> => computed(() => here.value.query.get(name) ?? "");

export const path = computed(() => here.value.path);
export const tab = text("tab");
export const query = text("q");
export const status = text("status");
export const metric = text("metric");
export const sort = text("sort");
export const columns = computed(() => splitted(here.value.query.get("cols")));
export const opened = computed(() => splitted(here.value.query.get("open")));
/** null: nobody has chosen yet, and the newest are preselected. */
export const chosen = computed(() => {
  const given = here.value.query.get("sel");
  return given === null ? null : given === "none" ? [] : splitted(given);
});
export const panel = text("panel");
export const chartQuery = text("charts");
export const brush = text("brush");
export const rankChoice = text("rank");

export const axis = computed<Axis>(() => {
  const given = here.value.query.get("x");
  return given === "time" || given === "relative" ? given : "step";
});
export const smoothing = computed(() => {
  const given = Number(here.value.query.get("smooth") ?? 0);
  return given > 0 && given < 1 ? given : 0;
});
export const logX = computed(() => here.value.query.get("logx") === "1");
export const logY = computed(() => here.value.query.get("logy") === "1");
/** The part of the x axis that all charts show; null: all of it. */
export const zoom = computed<[number, number] | null>(() => {
  const [from, to] = (here.value.query.get("zoom") ?? "").split(":").map(Number);
  return from !== undefined && to !== undefined && from < to ? [from, to] : null;
});

const splitted = (given: string | null): string[] => (given ? given.split(",").filter(Boolean) : []);

/** The choices that a link to another page takes along: they concern charts, not one page. */
export function carried(...names: string[]): Record<string, string> {
  const kept = ["smooth", "x", "logx", "logy", ...names];
  return Object.fromEntries(kept.map((name) => [name, here.value.query.get(name) ?? ""]));
}
