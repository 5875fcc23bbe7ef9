// Small pieces that all pages are made of.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Refused } from "./api";
import { reconnections } from "./live";

/** Names come from users: shown as text, and in their own direction. */
export const Name = ({ text, class: extra = "" }: { text: string; class?: string }) => (
  <bdi class={`name ${extra}`} title={text}>
    {text}
  </bdi>
);

const KNOWN = new Set(["running", "finished", "failed", "killed", "interrupted", "unfinished", "pending", "damaged"]);

const known = (status: string): string => (KNOWN.has(status) ? status : "other");

export const Status = ({ status, more = "" }: { status: string; more?: string }) => (
  <span class={`status ${known(status)}`}>
    <i aria-hidden="true" />
    {status}
    {more}
  </span>
);

export const Dot = ({ status }: { status: string }) => (
  <span class={`status ${known(status)}`} role="img" aria-label={status} title={status}>
    <i aria-hidden="true" />
  </span>
);

export const Empty = ({ children }: { children: ComponentChildren }) => <div class="empty">{children}</div>;

export const Problem = ({ error }: { error: unknown }) => (
  <div class="problem" role="alert">
    {error instanceof Refused || error instanceof Error ? error.message : String(error)}
  </div>
);

export const Loading = ({ what }: { what: string }) => (
  <div class="empty quiet" role="status">
    Loading {what} …
  </div>
);

/** What an effect loads: the answer, or what went wrong. */
export function useAnswer<T>(
  ask: (signal: AbortSignal) => Promise<T>,
  when: unknown[],
): [T | null, unknown, () => void] {
  const [state, set] = useState<{ answer: T | null; error: unknown }>({ answer: null, error: null });
  const [again, setAgain] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    ask(abort.signal).then(
      (answer) => abort.signal.aborted || set({ answer, error: null }),
      (error: unknown) => abort.signal.aborted || set((before) => ({ answer: before.answer, error })),
    );
    return () => abort.abort();
  }, [...when, again, reconnections.value]);
  return [state.answer, state.error, () => setAgain((count) => count + 1)];
}

/** A value that changes at most once in a while: for what is expensive to draw. */
export function useSlowly<T>(value: T, every: number): T {
  const [shown, show] = useState(value);
  const last = useRef(0);
  useEffect(() => {
    const wait = Math.max(0, last.current + every - Date.now());
    const timer = setTimeout(() => {
      last.current = Date.now();
      show(() => value);
    }, wait);
    return () => clearTimeout(timer);
  }, [value, every]);
  return shown;
}

/** Copies a text. Where the browser forbids it (plain HTTP to another host), the text is selected instead. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, set] = useState("");
  const copy = async (event: Event) => {
    const shown = (event.currentTarget as HTMLElement).parentElement?.querySelector("code");
    try {
      await navigator.clipboard.writeText(text);
      set("Copied");
    } catch {
      if (shown) getSelection()?.selectAllChildren(shown);
      set("Selected");
    }
    setTimeout(() => set(""), 1500);
  };
  return (
    <button type="button" class="small" onClick={copy}>
      {done || label}
    </button>
  );
}

export const Command = ({ text }: { text: string }) => (
  <div class="command">
    <code>{text}</code>
    <Copy text={text} />
  </div>
);

export function Tabs({
  names,
  active,
  choose,
}: {
  names: [string, string][];
  active: string;
  choose: (name: string) => void;
}) {
  return (
    <div class="tabs" role="tablist">
      {names.map(([name, label]) => (
        <button key={name} type="button" role="tab" aria-selected={name === active} onClick={() => choose(name)}>
          {label}
        </button>
      ))}
    </div>
  );
}

interface Question {
  title: string;
  text: string;
  yes: string;
  act: () => void;
}

export const question = signal<Question | null>(null);

/** A question that must be answered before something is done. */
export function Confirm() {
  const asked = question.value;
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (asked && !dialog.current?.open) dialog.current?.showModal();
  }, [asked]);
  if (!asked) return null;
  const close = () => {
    dialog.current?.close();
    question.value = null;
  };
  return (
    <dialog ref={dialog} class="confirm" onClose={close} aria-label={asked.title}>
      <h2>{asked.title}</h2>
      <p>{asked.text}</p>
      <div class="buttons">
        <button type="button" onClick={close}>
          Cancel
        </button>
        <button
          type="button"
          class="danger"
          onClick={() => {
            close();
            asked.act();
          }}
        >
          {asked.yes}
        </button>
      </div>
    </dialog>
  );
}

/** Renders its children only while they are on the screen, or close to it. */
export function InView({
  height,
  class: extra = "",
  children,
}: {
  height: number;
  class?: string;
  children: () => ComponentChildren;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [seen, set] = useState(false);
  useEffect(() => {
    const watch = new IntersectionObserver((found) => set(found[found.length - 1]!.isIntersecting), {
      rootMargin: "150px",
    });
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  return (
    <div ref={box} class={extra} style={{ minHeight: `${height}px` }}>
      {seen ? children() : null}
    </div>
  );
}

/** The size of an element, also when it changes. */
export function useSize<T extends Element>(): [(element: T | null) => void, { width: number; height: number }] {
  const [size, set] = useState({ width: 0, height: 0 });
  const watch = useRef<ResizeObserver | null>(null);
  const attach = useRef((element: T | null) => {
    watch.current?.disconnect();
    watch.current = null;
    if (!element) return;
    const measure = () => {
      const { width, height } = element.getBoundingClientRect();
      set((before) => (before.width === width && before.height === height ? before : { width, height }));
    };
    watch.current = new ResizeObserver(measure);
    watch.current.observe(element);
    measure();
  });
  return [attach.current, size];
}

export const themeOf = (): string => document.documentElement.dataset["theme"] ?? "";
/** Counts up when the colours change: what is drawn on a canvas must be drawn again. */
export const theme = signal(0);

const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => theme.value++);

export const isDark = (): boolean => (themeOf() ? themeOf() === "dark" : dark.matches);

/** The system's choice, until somebody prefers the other. */
export function applyTheme(wanted: string): void {
  if (wanted) document.documentElement.dataset["theme"] = wanted;
  else delete document.documentElement.dataset["theme"];
  theme.value++;
}

export function switchTheme(): void {
  const wanted = isDark() ? "light" : "dark";
  applyTheme(wanted === (dark.matches ? "dark" : "light") ? "" : wanted);
  try {
    if (themeOf()) localStorage.setItem("paceline-theme", themeOf());
    else localStorage.removeItem("paceline-theme");
  } catch {
    // a browser that stores nothing: the choice lasts as long as the page
  }
}

const resolved = new Map<string, string>();

/** A colour of the style sheet as a canvas takes it. */
export function colour(name: string): string {
  const key = `${name} ${theme.peek()}`;
  let found = resolved.get(key);
  if (!found) {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    found = getComputedStyle(probe).color;
    probe.remove();
    resolved.set(key, found);
  }
  return found;
}

export const COLOURS = 10;
export const lineColour = (place: number): string => colour(`line-${place % COLOURS}`);
