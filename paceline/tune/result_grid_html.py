"""How a ResultGrid looks in a notebook: the best trials and how many there are. No file is read for it."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING

from paceline.air import html
from paceline.air.constants import TIME_TOTAL_S, TRAINING_ITERATION
from paceline.air.metrics import number_in
from paceline.air.secrets import without_credentials
from paceline.air.words import counted, duration_text
from paceline.tune.progress.texts import column_names, shown_value
from paceline.tune.trial_outcome import number_at

if TYPE_CHECKING:
    from paceline.tune.result_grid import ResultGrid
    from paceline.tune.trial_outcome import TrialOutcome

_ROWS = 10
_PARAMETERS = 8
_ERRORS = 5


def grid_html(grid: ResultGrid) -> str:
    outcomes = grid.outcomes
    counts = Counter(outcome.status for outcome in outcomes)
    ended = [html.joined([f"{count:,} ", html.status(status)]) for status, count in counts.most_common()]
    shown = best_first(grid, outcomes)
    parts: list[object] = [
        html.heading("ResultGrid", counted(len(outcomes), "trial"), *ended),
        _table(grid, shown) if shown else "",
    ]
    if len(outcomes) > len(shown):
        parts.append(html.muted(f"… and {counted(len(outcomes) - len(shown), 'more trial', 'more trials')}"))
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        lines = [f"{each.trial}: {(str(each.error).splitlines() or [''])[0]}" for each in failed[:_ERRORS]]
        if len(failed) > _ERRORS:
            lines.append(f"… and {len(failed) - _ERRORS:,} more (see .errors)")
        parts.append(html.details(f"{len(failed):,} failed", html.scrolling("\n".join(lines))))
    rows: list[tuple[object, object]] = [("files", without_credentials(grid.path))]
    if grid.how_to_continue:
        rows.append(("to continue", html.element("code", grid.how_to_continue)))
    parts.append(html.pairs(rows))
    return html.whole(*parts)


def best_first(grid: ResultGrid, outcomes: list[TrialOutcome]) -> list[TrialOutcome]:
    """The best few by the last value of the search's metric; without one, the first few."""
    metric, mode = grid.metric, grid.mode
    if metric is None or mode is None:
        return outcomes[:_ROWS]

    def badness(outcome: TrialOutcome) -> tuple[bool, float]:
        value = number_at(outcome.metrics, metric)
        if value is None or not isfinite(value) or outcome.error is not None:
            return True, 0.0
        return False, -value if mode == "max" else value

    return heapq.nsmallest(_ROWS, outcomes, key=badness)


def _table(grid: ResultGrid, shown: list[TrialOutcome]) -> html.Markup:
    paths = list(dict.fromkeys(path for outcome in shown for path in outcome.trial.evaluated_params))
    names = dict(islice(column_names(paths).items(), _PARAMETERS))
    rows: list[list[object]] = []
    for outcome in shown:
        row, parameters = outcome.metrics, outcome.trial.evaluated_params
        cells: list[object] = [str(outcome.trial), html.status(outcome.status)]
        cells += [shown_value(parameters[path]) if path in parameters else "" for path in names]
        if grid.metric is not None:
            value = number_at(row, grid.metric)
            cells.append("" if value is None else f"{value:.5g}")
        iterations, seconds = int(number_in(row, TRAINING_ITERATION)), number_in(row, TIME_TOTAL_S)
        rows.append([*cells, f"{iterations:,}", duration_text(seconds)])
    measured = [] if grid.metric is None else [html.joined([grid.metric, html.muted(f" ({grid.mode or '?'})")])]
    headings = ["trial", "status", *names.values(), *measured, "iterations", "time"]
    table = html.table(headings, rows, right=range(2, len(headings)))
    if len(paths) <= _PARAMETERS:
        return table
    left_out = html.muted(f"parameters left out: {', '.join(column_names(paths[_PARAMETERS:]).values())}")
    return html.joined([table, html.element("div", left_out)])
