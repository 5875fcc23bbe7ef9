// The filter of a list: what its words and comparisons mean.

import type { Entry } from "./api";
import { params, title } from "./runs";

const texts = new WeakMap<Entry, string>();

/** What the words of a filter are looked for in. */
function textOf(each: Entry): string {
  let text = texts.get(each);
  if (text === undefined) {
    text = [each.name, each.trial_id, each.trainer, each.status, each.error, each.path, title(each), params(each)]
      .join("\n")
      .toLowerCase();
    texts.set(each, text);
  }
  return text;
}

export type Test = (each: Entry) => boolean;

/** `loss<0.3 sgd lr>=1e-3`: words, and comparisons with a metric or a parameter. All must hold. */
export function testOf(query: string): Test | null {
  const tests = query
    .trim()
    .split(/\s+/)
    .filter(Boolean)
    .map((word): Test => {
      const [, name, sign, limit] = /^([^<>=]+)(<=|>=|<|>|=)(.+)$/.exec(word) ?? [];
      if (!name || !sign || limit === undefined) {
        const wanted = word.toLowerCase();
        return (each) => textOf(each).includes(wanted);
      }
      const bound = Number(limit);
      return (each) => {
        const value = each.params?.[name] ?? each.metrics[name];
        if (sign === "=") return String(value) === limit || (typeof value === "number" && value === bound);
        if (typeof value !== "number") return false;
        return sign === "<"
          ? value < bound
          : sign === ">"
            ? value > bound
            : sign === "<="
              ? value <= bound
              : value >= bound;
      };
    });
  return tests.length ? (each) => tests.every((test) => test(each)) : null;
}

/** What of a filter looks like a comparison but is not one; empty if all is well. */
export function malformed(query: string): string {
  const words = query.trim().split(/\s+/);
  return (
    words.find((word) => {
      if (!/[<>]/.test(word)) return false;
      const [, , , limit] = /^([^<>=]+)(<=|>=|<|>)([^<>=]+)$/.exec(word) ?? [];
      return limit === undefined || Number.isNaN(Number(limit));
    }) ?? ""
  );
}
