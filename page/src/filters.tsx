// What is chosen for a list: a filter, the metric, and more columns.

import { useMemo } from "preact/hooks";
import { number } from "./format";
import { malformed } from "./match";
import * as runs from "./runs";
import { Name, Status } from "./ui";
import { choose, columns, metric, query, status } from "./url";

export function Filters({ placeholder, withStatus = true }: { placeholder: string; withStatus?: boolean }) {
  const wrong = malformed(query.value);
  return (
    <div class="bar">
      <input
        type="search"
        data-filter
        aria-label="Filter"
        placeholder={placeholder}
        value={query.value}
        onInput={(event) => choose({ q: event.currentTarget.value })}
      />
      {wrong ? (
        <span class="hint" role="status">
          <Name text={wrong} /> is not a comparison: write loss&lt;0.5
        </span>
      ) : null}
      {withStatus ? <Statuses /> : null}
      <MetricChoice />
      <ColumnChoice />
    </div>
  );
}

function Statuses() {
  const counts = [...runs.statuses.value].sort();
  return (
    <div class="chips" role="group" aria-label="Status">
      {counts.map(([name, count]) => (
        <button
          key={name}
          type="button"
          aria-pressed={status.value === name}
          onClick={() => choose({ status: status.value === name ? "" : name })}
        >
          <Status status={name} /> {number(count)}
        </button>
      ))}
    </div>
  );
}

const MOST_CHOICES = 300;

function MetricChoice() {
  const names = useMemo(() => runs.metrics.value.slice(0, MOST_CHOICES), [runs.metrics.value]);
  const chosen = runs.metric.value;
  if (!names.length) return null;
  return (
    <label class="choice">
      <select aria-label="Metric" value={chosen} onChange={(event) => choose({ metric: event.currentTarget.value })}>
        {names.includes(chosen) ? null : <option>{chosen}</option>}
        {names.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      {metric.value ? (
        <button
          type="button"
          class="small plain"
          title="Back to the usual metric"
          onClick={() => choose({ metric: "" })}
        >
          ×
        </button>
      ) : null}
    </label>
  );
}

function ColumnChoice() {
  const extra = columns.value;
  const all = [...runs.parameters.value.map((name) => `p:${name}`), ...runs.metrics.value.map((name) => `m:${name}`)];
  if (!all.length) return null;
  const flip = (key: string) =>
    choose({ cols: (extra.includes(key) ? extra.filter((each) => each !== key) : [...extra, key]).join(",") });
  return (
    <details class="menu">
      <summary>Columns</summary>
      <div class="menu-body">
        {all.slice(0, MOST_CHOICES).map((key) => (
          <label key={key}>
            <input type="checkbox" checked={extra.includes(key)} onChange={() => flip(key)} />
            <bdi>{key.slice(2)}</bdi> <span class="faint">{key.startsWith("p:") ? "parameter" : "metric"}</span>
          </label>
        ))}
      </div>
    </details>
  );
}
