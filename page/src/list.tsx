// The list of runs: filter, order, columns, selection. Only the rows on the screen are in the document.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import type { Entry } from "./api";
import { age, counted, duration, moment, number, shown } from "./format";
import { useKeys } from "./keys";
import * as runs from "./runs";
import { Sparkline, sparkOf } from "./sparks";
import { Dot, Empty, lineColour, Name, Status, theme, useSize } from "./ui";
import { carried, choose, go, link, opened, query, sort, status } from "./url";
import { Virtual } from "./virtual";

const ROW = 34;

interface Column {
  key: string;
  label: string;
  width: number;
  right?: boolean;
  fixed?: boolean;
  /** Columns with the largest number are left out first where there is little room. */
  spare?: number;
  cell: (entry: Entry) => ComponentChildren;
}

const value = (given: number | null | undefined) =>
  given === null || given === undefined ? <span class="faint">–</span> : number(given);

function began(entry: Entry): ComponentChildren {
  if (!entry.started) return <span class="faint">–</span>;
  const ago = runs.now.value - entry.started;
  return <span title={`started ${moment(entry.started)}`}>{age(ago)}</span>;
}

const took = (entry: Entry): string => {
  const seconds =
    entry.alive && entry.started
      ? runs.now.value - entry.started
      : entry.ended && entry.started
        ? entry.ended - entry.started
        : entry.seconds;
  return seconds > 0 ? duration(seconds) : "–";
};

function Progress({ entry }: { entry: Entry }) {
  const { ended, total } = runs.progress(entry);
  if (total === null)
    return <span title={`${counted(ended, "trial")} ended; how many there will be is not known`}>{number(ended)}</span>;
  return (
    <span class="progress" title={`${number(ended)} of ${counted(total, "trial")} ended${runs.failedTrials(entry)}`}>
      <progress max={total || 1} value={ended} />
      {number(ended)}/{number(total)}
    </span>
  );
}

function ranges(entry: Entry, which: "low" | "high"): ComponentChildren {
  if (entry.kind === "search") return null;
  const spark = sparkOf(entry, runs.metricOf(entry));
  return value(spark && spark.low <= spark.high ? spark[which] : null);
}

function tableColumns(extra: string[]): Column[] {
  const name = runs.metric.value;
  const place = runs.colours.value;
  const all: Column[] = [
    {
      key: "status",
      label: "Status",
      width: 92,
      spare: 1,
      cell: (each) => <Status status={each.kind === "damaged" ? "damaged" : each.status} />,
    },
    {
      key: "curve",
      label: name || "Curve",
      width: 96,
      fixed: true,
      cell: (each) => {
        if (each.kind === "search") return <Progress entry={each} />;
        const at = place.get(each.id);
        return name ? (
          <Sparkline spark={sparkOf(each, runs.metricOf(each))} stroke={at === undefined ? "var(--quiet)" : lineColour(at)} />
        ) : null;
      },
    },
    {
      key: "last",
      label: "Last",
      width: 70,
      right: true,
      cell: (each) => <span title={`last ${runs.metricOf(each)}`}>{value(runs.lastOf(each))}</span>,
    },
    { key: "low", label: "Min", width: 70, right: true, fixed: true, spare: 4, cell: (each) => ranges(each, "low") },
    { key: "high", label: "Max", width: 70, right: true, fixed: true, spare: 5, cell: (each) => ranges(each, "high") },
    {
      key: "iteration",
      label: "Iteration",
      width: 68,
      right: true,
      spare: 2,
      cell: (each) => (each.kind === "search" ? null : number(each.iteration)),
    },
    { key: "started", label: "Age", width: 52, right: true, spare: 0.5, cell: began },
    { key: "seconds", label: "Time", width: 88, right: true, spare: 3, cell: took },
  ];
  for (const key of extra) {
    const label = key.slice(2);
    const show = (each: Entry) => (key.startsWith("p:") ? each.params?.[label] : each.metrics[label]);
    all.push({
      key,
      label,
      width: 90,
      right: true,
      cell: (each) => (show(each) === undefined ? null : shown(show(each))),
    });
  }
  return all;
}

const MARK = 22;
const GAP = 10;
const EDGES = 24;

/** Names need more room than other columns, but a phone has little. */
const nameRoom = (room: number): number => (room < 500 ? 125 : 180);

const least = (table: Column[], name: number): number =>
  table.reduce((sum, column) => sum + column.width + GAP, EDGES + MARK + GAP + name);

/** What there is room for; columns that the user has added stay. */
function fitting(table: Column[], room: number): Column[] {
  let kept = table;
  for (const { key } of table.filter((column) => column.spare).sort((a, b) => b.spare! - a.spare!)) {
    if (least(kept, nameRoom(room)) <= room) break;
    kept = kept.filter((column) => column.key !== key);
  }
  return kept;
}

/** The row that the keyboard is at. */
const current = signal("");

function open(entry: Entry): void {
  getSelection()?.removeAllRanges(); // a double click has selected a word
  go(link(runs.pageOf(entry), carried()));
}

function expand(entry: Entry): void {
  const now = opened.peek();
  choose({ open: (now.includes(entry.id) ? now.filter((id) => id !== entry.id) : [...now, entry.id]).join(",") });
}

export function RunTable({ rows, extra, order }: { rows: runs.Row[]; extra: string[]; order: string }) {
  theme.value;
  const [measure, { width }] = useSize<HTMLDivElement>();
  const room = width || innerWidth;
  const table = fitting(tableColumns(extra), room);
  // Looked up when a key is pressed: keys may come faster than rows are drawn.
  const place = () => rows.findIndex((row) => row.entry.id === current.peek());
  const focused = () => rows[place()]?.entry;
  const move = (by: number) => {
    const at = place();
    const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))];
    if (next) current.value = next.entry.id;
  };
  const when = (kinds: string[], act: (entry: Entry) => void) => () => {
    const entry = focused();
    if (entry && kinds.includes(entry.kind)) act(entry);
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    x: when(["run", "trial"], (entry) => runs.toggle(entry.id)),
    Enter: when(["run", "trial", "search", "damaged"], open),
    o: when(["search"], expand),
    c: () => go(link("/compare", { ids: runs.selection.peek().join(","), ...carried("metric") })),
  });
  const at = rows.findIndex((row) => row.entry.id === current.value);
  const widths = [`${MARK}px`, `minmax(${nameRoom(room)}px, 1fr)`, ...table.map((column) => `${column.width}px`)].join(
    " ",
  );
  return (
    <div
      class="table"
      role="table"
      ref={measure}
      aria-rowcount={rows.length}
      style={{ "--columns": widths, "--least": `${least(table, nameRoom(room))}px` }}
    >
      <Head table={table} rows={rows} order={order} />
      {rows.length ? (
        <Virtual
          count={rows.length}
          height={ROW}
          role="rowgroup"
          label="Runs"
          focus={at}
          row={(place) => rows[place] && <Line key={rows[place].entry.id} row={rows[place]} table={table} />}
        />
      ) : (
        <Empty>
          {query.value || status.value
            ? "No run matches the filter."
            : "There are no runs here yet. They appear as soon as one starts."}
        </Empty>
      )}
    </div>
  );
}

function Head({ table, rows, order }: { table: Column[]; rows: runs.Row[]; order: string }) {
  const curves = rows.filter(({ entry }) => entry.kind === "run" || entry.kind === "trial");
  const some = runs.selection.value.length > 0;
  return (
    <div class="row head" role="row">
      <span role="columnheader">
        <input
          type="checkbox"
          checked={some}
          aria-label={some ? "Select no run" : "Select the first ten"}
          onChange={() => runs.select(some ? [] : curves.slice(0, runs.PRESELECTED).map(({ entry }) => entry.id))}
        />
      </span>
      <Sort column={{ key: "name", label: "Run" }} order={order} />
      {table.map((column) => (
        <Sort key={column.key} column={column} order={order} />
      ))}
    </div>
  );
}

function Sort({ column, order }: { column: Pick<Column, "key" | "label" | "right" | "fixed">; order: string }) {
  const [key, direction = "desc"] = order.split(/\.(?=asc$|desc$)/);
  const active = key === column.key;
  const next = active
    ? direction === "desc"
      ? "asc"
      : "desc"
    : column.key === "name" || column.key.startsWith("p:")
      ? "asc"
      : "desc";
  return (
    <span
      role="columnheader"
      class={column.right ? "right" : ""}
      aria-sort={active ? (direction === "asc" ? "ascending" : "descending") : "none"}
    >
      {column.fixed ? (
        <span class="label" title={column.label}>
          {column.label}
        </span>
      ) : (
        <button
          type="button"
          class="label"
          title={column.label}
          onClick={() => choose({ sort: `${column.key}.${next}` })}
        >
          {column.label}
          {active ? (direction === "asc" ? " ↑" : " ↓") : ""}
        </button>
      )}
    </span>
  );
}

function Line({ row: { entry, depth }, table }: { row: runs.Row; table: Column[] }) {
  const place = runs.colours.value.get(entry.id);
  const isOpen = opened.value.includes(entry.id);
  const drawable = entry.kind === "run" || entry.kind === "trial";
  return (
    <div
      class={`row ${entry.kind} ${current.value === entry.id ? "current" : ""} ${depth ? "below" : ""}`}
      role="row"
      data-id={entry.id}
      onClick={() => (current.value = entry.id)}
      onDblClick={() => open(entry)}
    >
      <span role="cell">
        {drawable ? (
          <input
            type="checkbox"
            checked={place !== undefined}
            style={place === undefined ? {} : { accentColor: lineColour(place) }}
            aria-label={`Draw ${runs.title(entry)}`}
            onChange={() => runs.toggle(entry.id)}
          />
        ) : entry.kind === "search" ? (
          <button
            type="button"
            class="caret"
            aria-expanded={isOpen}
            aria-label={isOpen ? "Hide trials" : "Show trials"}
            onClick={() => expand(entry)}
          >
            {isOpen ? "▾" : "▸"}
          </button>
        ) : null}
      </span>
      <span role="cell" class="title">
        {table.some((column) => column.key === "status") ? null : <Dot status={entry.status} />}
        <a href={link(runs.pageOf(entry), carried())}>
          <Name text={runs.title(entry)} />
        </a>
        {entry.error && runs.endedBadly(entry) ? (
          <Name text={runs.cause(entry)} class="sub bad" />
        ) : (
          <Name
            text={table.some(({ key }) => key.startsWith("p:")) ? entry.trial_id : runs.subtitle(entry)}
            class="sub"
          />
        )}
      </span>
      {table.map((column) => (
        <span key={column.key} role="cell" class={column.right ? "right" : ""}>
          {column.cell(entry)}
        </span>
      ))}
    </div>
  );
}

export const order = (usual: string): string => sort.value || usual;
