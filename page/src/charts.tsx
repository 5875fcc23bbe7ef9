// All charts of some runs, and what is chosen for all of them: the x axis, smoothing, log axes, zoom.

import { useMemo, useState } from "preact/hooks";
import { Chart, xText, type Curve } from "./chart";
import { counted } from "./format";
import { Empty, InView } from "./ui";
import { axis, chartQuery, choose, here, logX, logY, smoothing, zoom } from "./url";

const HEIGHT = 210;
const TALL = 420;
const HEAD = 34;
const AT_FIRST = 60;

export function ChartTools({ filter = true }: { filter?: boolean }) {
  const range = zoom.value;
  return (
    <div class="bar tools">
      {filter ? (
        <input
          type="search"
          aria-label="Filter charts"
          placeholder="Filter charts"
          value={chartQuery.value}
          onInput={(event) => choose({ charts: event.currentTarget.value })}
        />
      ) : null}
      <label class="choice">
        x
        <select
          aria-label="x axis"
          value={axis.value}
          onChange={(event) =>
            choose({ x: event.currentTarget.value === "step" ? "" : event.currentTarget.value, zoom: "" })
          }
        >
          <option value="step">step</option>
          <option value="relative">relative time</option>
          <option value="time">wall time</option>
        </select>
      </label>
      <label class="choice">
        Smoothing
        <input
          type="range"
          min="0"
          max="0.99"
          step="0.01"
          aria-label="Smoothing"
          value={smoothing.value}
          onInput={(event) => choose({ smooth: Number(event.currentTarget.value) ? event.currentTarget.value : "" })}
        />
        <output class="figure">{smoothing.value.toFixed(2)}</output>
      </label>
      <div class="chips">
        <button type="button" aria-pressed={logX.value} onClick={() => choose({ logx: logX.value ? "" : "1" })}>
          log x
        </button>
        <button type="button" aria-pressed={logY.value} onClick={() => choose({ logy: logY.value ? "" : "1" })}>
          log y
        </button>
      </div>
      {range ? (
        <button type="button" class="small" onClick={() => choose({ zoom: "" })}>
          {xText(range[0], axis.value)} – {xText(range[1], axis.value).replace("step ", "")} ×
        </button>
      ) : (
        <span class="hint wide">drag to zoom</span>
      )}
    </div>
  );
}

interface Props {
  metrics: string[];
  curves: Curve[];
  marks?: number[];
  none?: string;
}

export function Charts({ metrics, curves, marks, none = "Select runs to see their curves." }: Props) {
  const words = chartQuery.value.toLowerCase().split(/\s+/).filter(Boolean);
  const [most, setMost] = useState(AT_FIRST);
  const shown = metrics.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
  const groups = useMemo(() => grouped(shown.slice(0, most)), [shown.join("\n"), most]);
  const big = here.value.query.get("big") ?? "";
  if (!curves.length) return <Empty>{none}</Empty>;
  if (!metrics.length) return <Empty>No numbers have been reported yet.</Empty>;
  if (!shown.length) return <Empty>No chart matches the filter.</Empty>;
  return (
    <div class="charts">
      {groups.map(([group, names]) => (
        <section key={group}>
          {groups.length > 1 && group ? <h3 class="group">{group}</h3> : null}
          <div class="chart-grid">
            {names.map((name) => (
              <InView
                key={name}
                height={(name === big ? TALL : HEIGHT) + HEAD}
                class={`card ${name === big ? "big" : ""}`}
              >
                {() => (
                  <>
                    <Chart
                      metric={name}
                      curves={curves}
                      height={name === big ? TALL : HEIGHT}
                      {...(marks ? { marks } : {})}
                    />
                    <button
                      type="button"
                      class="enlarge"
                      aria-label={name === big ? "Make the chart smaller" : "Make the chart larger"}
                      onClick={() => choose({ big: name === big ? "" : name })}
                    >
                      {name === big ? "−" : "+"}
                    </button>
                  </>
                )}
              </InView>
            ))}
          </div>
        </section>
      ))}
      {shown.length > most ? (
        <button type="button" class="more" onClick={() => setMost(most * 4)}>
          Show more of {counted(shown.length, "chart")}
        </button>
      ) : null}
    </div>
  );
}

/** `eval/loss` and `eval/f1` stand together; what has no group comes first. */
function grouped(names: string[]): [string, string[]][] {
  const groups = new Map<string, string[]>([["", []]]);
  for (const name of names) {
    const cut = name.indexOf("/");
    const group = cut > 0 ? name.slice(0, cut) : "";
    const members = groups.get(group);
    if (members) members.push(name);
    else groups.set(group, [name]);
  }
  return [...groups].filter(([, members]) => members.length);
}
