"""A search as a notebook shows it: how far it is, the best so far, and the trials that matter most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.air import html
from paceline.tune.progress.table import NEVER, Column
from paceline.tune.progress.texts import facts, one_line, scheduler_text

if TYPE_CHECKING:
    from paceline.run.spec import Trial
    from paceline.tune.progress.view import BestSoFar, ExperimentEnd, ExperimentView

_COLUMNS = 12
_COLOURS = {"RUNNING": html.GOOD, "PAUSED": html.WARNING, "ERROR": html.BAD}


def search_html(
    view: ExperimentView,
    trials: Sequence[Trial],
    columns: Sequence[Column],
    left_out: str,
    best_so_far: BestSoFar,
    end: ExperimentEnd | None,
) -> html.Markup:
    """`left_out` says which trials are not in the table."""
    parts: list[object] = [_head(view, end), _curve(view, best_so_far)]
    if trials:
        parts.append(_table(view, trials, columns))
    if left_out:
        parts.append(html.element("div", html.muted(left_out)))
    if end is not None and end.restore_hint:
        parts.append(html.pairs({"to continue": html.element("code", end.restore_hint)}))
    return html.joined(parts)


def _head(view: ExperimentView, end: ExperimentEnd | None) -> html.Markup:
    status = html.coloured("running", html.GOOD) if end is None else html.status(end.status)
    said: list[object] = [status, *facts(view)]
    if scheduler := scheduler_text(view):
        said.append(html.short(scheduler, 120))
    head = html.heading(one_line(view.name), *said)
    ended = view.counts.get("TERMINATED", 0) + view.counts.get("ERROR", 0)
    return html.joined([head, html.progress_bar(ended / view.total, 420)]) if view.total else head


def _curve(view: ExperimentView, best_so_far: BestSoFar) -> html.Markup:
    if view.metric is None or not any(value is not None for value in best_so_far.values):
        return html.Markup()
    label = html.element("div", f"best {one_line(view.metric)} so far", "font-weight:600")
    return html.joined([label, html.chart(best_so_far.values, best_so_far.seconds, label="seconds", height=90)])


def _table(view: ExperimentView, trials: Sequence[Trial], columns: Sequence[Column]) -> html.Markup:
    ranked = sorted((column for column in columns if column.rank != NEVER), key=lambda column: column.rank)
    kept = ranked[:_COLUMNS]
    shown = [column for column in columns if column in kept]
    best = view.best_trial()
    rows = [[_cell(column.cell, trial, trial is best) for column in shown] for trial in trials]
    right = [place for place, column in enumerate(shown) if column.right]
    table = html.table([one_line(column.title) for column in shown], rows, right=right)
    missing = [one_line(column.title) for column in columns if column not in kept]
    if not missing:
        return table
    return html.joined(
        [table, html.element("div", html.muted(html.short(f"columns left out: {', '.join(missing)}", 300)))]
    )


def _cell(cell: Callable[[Trial], str], trial: Trial, is_best: bool) -> html.Markup:
    text = cell(trial)
    if text == trial.status and text in _COLOURS:
        return html.coloured(text, _COLOURS[text])
    return html.element("strong", text) if is_best else html.escaped(text)
