// The keyboard: what each key does on the page that is shown, and the overview of all of them.

import { signal } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";
import { question, switchTheme } from "./ui";
import { go, here } from "./url";

export type Keys = Record<string, () => void>;

const layers: Keys[] = [];

/** Keys of a component while it is shown; the component that came last wins. */
export function useKeys(keys: Keys): void {
  useLayoutEffect(() => {
    layers.push(keys);
    return () => void layers.splice(layers.indexOf(keys), 1);
  });
}

const help = signal(false);

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement &&
  (target.matches("input:not([type=checkbox]):not([type=range]), select, textarea") || target.isContentEditable);

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || question.peek()) return;
  if (event.key === "Escape") escape(event);
  else if (!isTyping(event.target)) press(event);
});

function escape(event: KeyboardEvent): void {
  if (help.peek()) help.value = false;
  else if (isTyping(event.target)) (event.target as HTMLElement).blur();
  else if (!called("Escape") && here.peek().path !== "/") go("/");
}

function press(event: KeyboardEvent): void {
  const inControl = event.target instanceof HTMLElement && event.target.matches("button, a, summary, input");
  if (event.key === "Enter" && inControl) return;
  if (event.key === "?") help.value = !help.peek();
  else if (event.key === "t") switchTheme();
  else if (event.key === "/") document.querySelector<HTMLElement>("[data-filter]")?.focus();
  else if (!called(event.key)) return;
  event.preventDefault();
}

function called(key: string): boolean {
  const found = layers.findLast((keys) => keys[key]);
  found?.[key]?.();
  return found !== undefined;
}

const OVERVIEW: [string, string][] = [
  ["j  k", "next, previous run"],
  ["Enter", "open the run"],
  ["x", "draw the run's curves, or not"],
  ["c", "compare the selected runs"],
  ["/", "filter"],
  ["1 – 7", "tabs of a run or a search"],
  ["f", "follow a log"],
  ["Esc", "back to the list"],
  ["t", "dark or light"],
  ["?", "this overview"],
];

export const showHelp = (): void => void (help.value = true);

export function Help() {
  if (!help.value) return null;
  return (
    <div class="overlay" onClick={() => (help.value = false)}>
      <div class="sheet" role="dialog" aria-label="Keyboard">
        <h2>Keyboard</h2>
        <dl class="keys">
          {OVERVIEW.map(([key, meaning]) => (
            <div key={key}>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
      </div>
    </div>
  );
}
