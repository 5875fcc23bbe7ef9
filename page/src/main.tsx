// The page as a whole: which page the address asks for, the bar above it, and what is said when the server is gone.

import "./language";
import "uplot/dist/uPlot.min.css";
import "./styles.css";
import { render } from "preact";
import { ComparePage } from "./compare";
import { Charts, ChartTools } from "./charts";
import { counted, number } from "./format";
import { Help, showHelp } from "./keys";
import { Filters } from "./filters";
import { order, RunTable } from "./list";
import { connection, start } from "./live";
import { RunPage } from "./run";
import * as runs from "./runs";
import { SearchPage } from "./search";
import { applyTheme, Confirm, Empty, isDark, Loading, Name, switchTheme, theme } from "./ui";
import { carried, choose, columns, link, panel, path } from "./url";

/** More curves than this in one chart cannot be told apart. */
const MOST_CURVES = 30;

function ListPage() {
  if (!runs.loaded.value) return runs.problem.value ? null : <Loading what="runs" />;
  const [view, rows] = [panel.value, runs.rows.value];
  const chosen = runs.selection.value;
  const hidden = chosen.length - runs.visible.value.length;
  return (
    <div class={`listpage ${view || "both"}`}>
      <section class="runs">
        <Filters placeholder="Filter: words, lr<0.01, loss>=2" />
        <RunTable rows={rows} extra={columns.value} order={order(runs.DEFAULT_SORT)} />
        <footer class="foot">
          {counted(rows.length, "row")}, {number(chosen.length)} selected
          {hidden ? `, ${hidden === chosen.length ? "" : `${number(hidden)} `}hidden by the filter` : ""}
          {chosen.length > 1 ? (
            <a class="button small" href={link("/compare", { ids: chosen.join(","), ...carried("metric") })}>
              Compare {number(chosen.length)}
            </a>
          ) : null}
          <span class="views" role="group" aria-label="View">
            {[
              ["list", "List"],
              ["", "Both"],
              ["charts", "Charts"],
            ].map(([name, label]) => (
              <button
                key={name}
                type="button"
                class={`small ${name || "both"}`}
                aria-pressed={view === name}
                onClick={() => choose({ panel: name! })}
              >
                {label}
              </button>
            ))}
          </span>
        </footer>
      </section>
      {view === "list" ? null : <Curves />}
    </div>
  );
}

function Curves() {
  const drawn = runs.visible.value.slice(0, MOST_CURVES);
  const shown = drawn.flatMap((id) => runs.entry(id) ?? []);
  const curves = shown.map((each) => ({ run: each.id, place: runs.colours.value.get(each.id) ?? 0 }));
  const metrics = runs.metricsOf(shown);
  const names = [
    ...metrics.filter((name) => name === runs.metric.value),
    ...metrics.filter((name) => name !== runs.metric.value),
  ];
  return (
    <section class="curves" aria-label="Charts">
      <ChartTools />
      {runs.visible.value.length > MOST_CURVES ? (
        <div class="warning">Only the first {MOST_CURVES} of the selected runs are drawn.</div>
      ) : null}
      <Charts
        metrics={names}
        curves={curves}
        {...(runs.selection.value.length ? { none: "The filter hides the selected runs." } : {})}
      />
    </section>
  );
}

function Page() {
  const [, kind, id] = path.value.split("/");
  if (path.value === "/") return <ListPage />;
  if (path.value === "/compare") return <ComparePage />;
  if (kind === "run" && id) return <RunPage key={id} id={id} />;
  if (kind === "search" && id) return <SearchPage key={id} id={id} />;
  return (
    <Empty>
      There is no such page. <a href="/">Show all runs</a>
    </Empty>
  );
}

function Banner() {
  const refused = runs.problem.value;
  if (connection.value === "refused" || (refused && (refused.status === 401 || refused.status === 403)))
    return (
      <div class="banner bad" role="alert">
        The server does not know this browser any more. Open the link that `paceline dash` printed.
      </div>
    );
  if (connection.value === "lost" || refused)
    return (
      <div class="banner bad" role="alert">
        {refused && refused.status > 0
          ? refused.message
          : "The server does not answer. What you see is the last known state; trying again every 2 seconds."}
      </div>
    );
  return null;
}

function Bar() {
  theme.value;
  const facts = runs.about.value;
  return (
    <nav class="top">
      <a class="brand" href={link("/", carried())}>
        <svg width="18" height="18" viewBox="0 0 16 16" aria-hidden="true">
          <path d="M2 12 6 7l3 3 5-7" fill="none" stroke="currentColor" stroke-width="2" />
        </svg>
        paceline
      </a>
      {facts ? (
        <span class="root">
          <Name text={`${facts.hostname}: ${facts.root}`} />
        </span>
      ) : null}
      <span
        class={`live ${connection.value}`}
        role="status"
        title={connection.value === "open" ? "Updates arrive as they happen" : "Not connected"}
      >
        {connection.value === "open" ? "live" : connection.value === "connecting" ? "connecting" : "offline"}
      </span>
      <button type="button" class="icon" aria-label="Keyboard shortcuts" onClick={showHelp}>
        ?
      </button>
      <button type="button" class="icon" aria-label={isDark() ? "Light colours" : "Dark colours"} onClick={switchTheme}>
        ◐
      </button>
    </nav>
  );
}

function App() {
  return (
    <>
      <Bar />
      <Banner />
      <main>
        <Page />
      </main>
      <Help />
      <Confirm />
    </>
  );
}

try {
  applyTheme(localStorage.getItem("paceline-theme") ?? "");
} catch {
  applyTheme("");
}
render(<App />, document.getElementById("app")!);
start();
