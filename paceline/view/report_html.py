"""A run or a search as one HTML file: curves, metrics, configuration and failure, to be mailed or kept.

The file needs nothing else: no scripts, no fonts, no other host. A browser is told to load nothing. Whatever comes from
the run is escaped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paceline.air.html import Markup, chart, details, element, escaped, joined, pairs, short, table
from paceline.air.metrics import nested_get
from paceline.air.version import version
from paceline.air.words import counted, duration_text, moment_text, size_text
from paceline.run.found_runs import RunSummary
from paceline.tune.experiment.summary import ExperimentSummary, TrialSummary
from paceline.view.decimate import m4
from paceline.view.facts import RunFacts, run_facts, users_config
from paceline.view.flat import flat
from paceline.view.series import RunSeries

CHART_WIDTH, CHART_HEIGHT = 520, 170
MOST_CHARTS = 100
"""Further metrics are only named: a file with thousands of curves cannot be opened."""
MOST_TRIALS = 2000

_STYLE = """
:root { color-scheme: light dark; --line: rgba(128,128,128,.35); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; margin: 0 0 .2em; overflow-wrap: anywhere; }
h2 { font-size: 1.1em; margin: 1.6em 0 .4em; border-bottom: 1px solid var(--line); }
figure { margin: 0; }
figcaption { font-weight: 600; overflow-wrap: anywhere; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 500px), 1fr)); gap: 1.2em; }
.curves svg { color: #2563eb; }
@media (prefers-color-scheme: dark) { .curves svg { color: #7aa2ff; } }
.failed, .killed { color: #d33; } .finished { color: #2a8a4a; }
pre { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { overflow: auto; white-space: pre-wrap; border: 1px solid var(--line); padding: .6em .8em; }
.wide { overflow-x: auto; }
footer { margin-top: 2em; opacity: .65; font-size: 13px; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def run_report(path: str, filesystem: Any = None) -> str:
    """The report of a run or a trial."""
    facts = run_facts(path, filesystem)
    series = RunSeries(path, filesystem)
    series.refresh()
    summary, config = facts.summary, users_config(facts)
    title = f"{summary.name} / {summary.trial_id}"
    return _page(
        title,
        [
            _facts_of_run(facts),
            *_failure(facts),
            *_curves(series),
            *_last_metrics(facts),
            *_section("Configuration", _config(config), config is None or config),
            *_attempts(facts),
            *_memory(facts),
            *_checkpoints(facts),
            *_section(
                "Warnings", element("ul", joined(element("li", text) for text in facts.warnings)), facts.warnings
            ),
            *_section("To continue", element("pre", facts.how_to_continue), facts.how_to_continue),
            *_section("Settings", details("Everything the run was started with", _values(facts.settings))),
        ],
    )


def search_report(search: ExperimentSummary) -> str:
    """The report of a search: its trials, and how the best value came about."""
    best = search.best
    parts: list[Markup] = [_facts_of_search(search), *_best_so_far(search)]
    if best is not None:
        parts += _section(f"Best trial: {best.trial_id}", joined([_values(best.params), _values(best.reached.metrics)]))
    parts += _trials(search)
    parts += _section("To continue", element("pre", search.how_to_continue), search.how_to_continue)
    return _page(search.name, parts)


# -- the page ---------------------------------------------------------------------------------


def _page(title: str, parts: Iterable[Markup]) -> str:
    head = joined(
        [
            Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{escaped(_POLICY)}">'),
            element("title", title),
            element("style", Markup(_STYLE)),
        ]
    )
    written = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    footer = element("footer", f"Written by paceline {version()} on {written}.")
    body = element("body", joined([element("h1", title), *parts, footer]))
    return f'<!doctype html>\n<html lang="en">{element("head", head)}{body}</html>\n'


def _section(title: str, content: object, shown: object = True) -> list[Markup]:
    return [element("section", joined([element("h2", title), content]))] if shown else []


def _values(values: Mapping[str, Any]) -> Markup:
    return pairs((key, _whole(value)) for key, value in flat(values).items())


def _whole(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _status(status: str) -> Markup:
    return element("strong", status, **{"class": status})


def _time(moment: float | None) -> str:
    return moment_text(moment) if moment else ""


def _times(summary: RunSummary | ExperimentSummary) -> Iterator[tuple[str, object]]:
    if summary.started:
        yield "started", _time(summary.started)
    if summary.ended:
        yield "ended", f"{_time(summary.ended)}, after {duration_text(summary.ended - summary.started)}"


# -- a run ------------------------------------------------------------------------------------


def _facts_of_run(facts: RunFacts) -> Markup:
    summary = facts.summary
    most = summary.most_iterations
    return pairs(
        [
            ("status", _status(summary.status)),
            ("trainer", f"{summary.trainer}, {counted(summary.num_workers, 'worker')}"),
            ("iteration", f"{summary.reached.iteration:g}" + (f" of {most:g}" if most else "")),
            ("time", duration_text(summary.reached.time_total_s)),
            *_times(summary),
            ("files", summary.path),
        ]
    )


def _failure(facts: RunFacts) -> list[Markup]:
    text = facts.summary.error
    last = facts.failures[-1] if facts.failures else None
    if last is not None and last.traceback and last.traceback.strip() not in text:
        text = f"{text}\n\n{last.traceback}" if "\n" not in text.strip() else text
    text = "\n".join(line for line in text.splitlines() if not line.startswith("To continue: ")).strip()  # stands below
    title = f"Failure: rank {last.rank}" if last is not None else "Failure"
    return _section(title, element("pre", text), text)


def _last_metrics(facts: RunFacts) -> Iterator[Markup]:
    """Rank 0 need not be the one that failed: then both are shown."""
    metrics, last = facts.summary.reached.metrics, facts.last_report
    if last is None or last.rank == 0:
        yield from _section("Last metrics", _values(metrics), metrics)
        return
    yield from _section(f"Last metrics of rank {last.rank}, iteration {last.iteration}", _values(last.metrics))
    yield from _section("Last metrics of rank 0", _values(metrics), metrics)


def _curves(series: RunSeries) -> list[Markup]:
    names = series.metrics()
    drawn = [_curve(series, name) for name in names[:MOST_CHARTS]]
    left_out = names[MOST_CHARTS:]
    more = details(f"{counted(len(left_out), 'more metric')} without a curve", ", ".join(left_out)) if left_out else ""
    grid = element("div", joined(drawn), **{"class": "curves"})
    return _section(f"Curves ({counted(series.rows, 'report')})", joined([grid, more]), drawn)


def _curve(series: RunSeries, name: str) -> Markup:
    steps, values = series.steps(), series.column(name)
    shown = m4(steps, values, CHART_WIDTH // 2)
    drawing = chart(
        [float(value) for value in values[shown]],
        [float(step) for step in steps[shown]],
        width=CHART_WIDTH,
        height=CHART_HEIGHT,
    )
    finite = values[np.isfinite(values)]
    extremes = f"lowest {finite.min():.5g}, highest {finite.max():.5g}, last {finite[-1]:.5g}" if finite.size else ""
    caption = element("figcaption", joined([name, element("small", f"  {extremes}", "font-weight:400;opacity:.7")]))
    return element("figure", joined([caption, drawing]))


def _config(config: Mapping[str, Any] | None) -> Markup:
    return _values(config) if config is not None else escaped("It is not plain data, so it was not stored.")


def _attempts(facts: RunFacts) -> list[Markup]:
    failures = {failure.attempt: failure.in_words for failure in facts.failures}
    rows = [
        (
            each.attempt + 1,
            each.start_index,
            each.world_size,
            each.hostname,
            _time(each.time),
            failures.get(each.attempt, ""),
        )
        for each in facts.attempts
    ]
    heads = ("attempt", "after iteration", "workers", "host", "started", "failure")
    return _section("Attempts", _wide(table(heads, rows, right=(0, 1, 2))), len(rows) > 1)


def _checkpoints(facts: RunFacts) -> list[Markup]:
    heads: tuple[str, ...]
    rows: list[tuple[object, ...]] = [
        (
            each.number,
            each.iteration,
            _whole(each.score) if each.score is not None else "",
            _size(each.size),
            _time(each.time),
        )
        for each in facts.checkpoints
        if each.kept
    ]
    heads = ("checkpoint", "iteration", "score", "size", "committed")
    if not any(row[2] for row in rows):  # nothing ranks them
        heads, rows = (*heads[:2], *heads[3:]), [(*row[:2], *row[3:]) for row in rows]
    return _section("Checkpoints that are kept", _wide(table(heads, rows, right=range(len(heads) - 1))), rows)


def _size(size: int) -> str:
    return size_text(size) if size else ""


# -- a search ---------------------------------------------------------------------------------


def _memory(facts: RunFacts) -> list[Markup]:
    rows = [
        [each.rank, size_text(each.start) if each.start else "", size_text(each.peak), size_text(each.last)]
        for each in facts.memory
    ]
    return _section("Memory", table(("rank", "at start", "peak", "last"), rows), rows)


def _facts_of_search(search: ExperimentSummary) -> Markup:
    counts: dict[str, int] = {}
    for trial in search.trials:
        counts[trial.status] = counts.get(trial.status, 0) + 1
    said, failed = ", ".join(f"{count} {status}" for status, count in counts.items()), counts.get("failed")
    metric = f"{search.metric} ({search.mode})" if search.metric else "none"
    return pairs(
        [
            ("status", joined([_status(search.status), f", {failed} failed" if failed else ""])),
            ("trainable", search.trainable),
            ("metric", metric),
            ("trials", f"{len(search.trials)}: {said}" if said else "0"),
            *_times(search),
            ("files", search.path),
        ]
    )


def _best_so_far(search: ExperimentSummary) -> list[Markup]:
    if not isinstance(search.metric, str) or search.mode not in ("min", "max"):
        return []
    best_of = min if search.mode == "min" else max
    best, values = math.nan, list[float]()
    for trial in search.trials:
        value = nested_get(trial.reached.metrics, search.metric)
        if isinstance(value, int | float) and math.isfinite(value) and trial.status != "failed":
            best = float(value) if math.isnan(best) else best_of(best, float(value))
        values.append(best)
    drawing = chart(values, [float(trial.number) for trial in search.trials], label="trial", width=CHART_WIDTH)
    figure = element("figure", joined([element("figcaption", search.metric), drawing]))
    title = "Best so far"
    return _section(title, element("div", figure, **{"class": "curves"}), any(not math.isnan(each) for each in values))


def _trials(search: ExperimentSummary) -> list[Markup]:
    shown = search.trials[:MOST_TRIALS]
    params, metrics = _columns(trial.params for trial in shown), _columns(trial.reached.metrics for trial in shown)
    heads = ("trial", "status", "iteration", *params, *metrics, "error")
    rows = [_trial(trial, params, metrics) for trial in shown]
    left_out = len(search.trials) - len(shown)
    more = f"{counted(left_out, 'trial')} more: export them as CSV." if left_out else ""
    return _section("Trials", joined([_wide(table(heads, rows)), more]), rows)


def _trial(trial: TrialSummary, params: Sequence[str], metrics: Sequence[str]) -> list[object]:
    chosen, reached = flat(trial.params), flat(trial.reached.metrics)
    error = trial.error.splitlines()[0] if trial.error else ""
    cells: list[object] = [trial.trial_id, _status(trial.status), f"{trial.reached.iteration:g}"]
    cells += [short(chosen[name]) if name in chosen else "" for name in params]
    cells += [short(reached[name]) if name in reached else "" for name in metrics]
    return [*cells, error]


def _columns(values: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for each in values for name in flat(each)))[:50]


def _wide(content: Markup) -> Markup:
    return element("div", content, **{"class": "wide"})
