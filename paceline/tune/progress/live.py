"""A live table of an experiment in a terminal. Only imported when there is one, because `rich` is not cheap."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any, cast

from rich.live import Live
from rich.text import Text

from paceline.run.live_progress import DRAW_INTERVAL_S, PrefixedOutput, VisibleCursorConsole
from paceline.run.terminal import GuardedWriter, printable
from paceline.tune.progress.base import ExperimentProgress, ExperimentSummary, ExperimentView
from paceline.tune.progress.columns import Column, cell_width, clipped, metric_columns, parameter_columns, table_lines
from paceline.tune.progress.texts import (
    closing_lines,
    error_line,
    facts,
    one_line,
    output_prefix,
    scheduler_text,
    short_name,
    start_line,
)

if TYPE_CHECKING:
    from paceline.run.trial import Trial

_STYLES = {"RUNNING": "", "PAUSED": "yellow", "PENDING": "dim", "TERMINATED": "dim", "ERROR": "red"}
_MOST_HEAD_LINES = 3
_METRICS_INFERRED = 3
_LONGEST_CELL = 20
_ROWS_FOR_ERRORS = 3
"""Failed trials keep so many rows even where running ones could fill the screen."""


class LiveExperimentProgress(ExperimentProgress):
    """The state in a line or two, then the trials that matter most, drawn a few times a second.

    Nothing draws in the background: `row`, `trial_changed` and `tick` draw when it is time.
    """

    def __init__(self, writer: GuardedWriter) -> None:
        self._console = VisibleCursorConsole(file=cast("IO[str]", writer), highlight=False, emoji=False)
        self._output = PrefixedOutput()
        self._live: Live | None = None
        self._view: ExperimentView | None = None
        self._next_draw_at = 0.0

    def started(self, view: ExperimentView) -> None:
        self._view = view
        self._print(printable(start_line(view)), "bold")
        self._live = Live(self._frame(view), console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def row(self, trial: Trial, row: Mapping[str, Any]) -> None:
        if time.monotonic() >= self._next_draw_at:
            self._draw()

    def trial_changed(self, trial: Trial) -> None:
        if trial.status == "ERROR" and self._view is not None:
            self._print(f"Failed: {error_line(trial, self._view.errors.get(trial, ''))}", "red")
        if time.monotonic() >= self._next_draw_at:
            self._draw()

    def tick(self) -> None:
        if time.monotonic() >= self._next_draw_at:
            self._draw()

    def output(self, trial: Trial, rank: int | None, text: str) -> None:
        if shown := self._output.shown(output_prefix(trial, rank), text):
            self._console.print(shown, end="", soft_wrap=True)

    def note(self, text: str) -> None:
        self._print(printable(text), "bold")

    def warning(self, text: str) -> None:
        self._print(f"Warning: {printable(text)}", "yellow")

    def finished(self, summary: ExperimentSummary) -> None:
        self.close()
        if self._view is None:
            return
        good = summary.status == "finished" and not self._view.errors
        heading, *rest = closing_lines(self._view, summary)
        self._print(printable(heading), "bold green" if good else "bold red")
        self._print(printable("\n".join(rest)))

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _draw(self) -> None:
        if self._live is not None and self._view is not None:
            self._live.update(self._frame(self._view), refresh=True)
        self._next_draw_at = time.monotonic() + DRAW_INTERVAL_S

    def _frame(self, view: ExperimentView) -> Text:
        width, height = self._console.size
        return Text("\n", no_wrap=True, overflow="crop").join(frame_lines(view, width, height - 1))

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=True)


def frame_lines(view: ExperimentView, width: int, height: int) -> list[Text]:
    """What one drawing shows: at most `height` lines, none wider than `width`."""
    head = [Text(line, "bold") for line in _wrapped([one_line(view.name), *facts(view)], width)]
    if scheduler := scheduler_text(view):
        head.append(Text(clipped(scheduler, width), "dim"))
    room = height - len(head) - 3  # an empty line, the heading, and what is left out
    trials = shown_trials(view, room)
    if not trials:
        return head[: max(1, height)]
    best = view.best_trial()
    columns = [
        Column("trial", lambda trial: f"{'★' if trial is best else ' '}{short_name(trial)}"),
        Column("status", lambda trial: trial.status, rank=1),
        *parameter_columns(trials),
        *metric_columns(trials, view.metric, _METRICS_INFERRED),
    ]
    heading, *rows = table_lines(columns, trials, width, _LONGEST_CELL)
    lines = [*head, Text(""), Text(heading, "dim")]
    for trial, row in zip(trials, rows, strict=True):
        lines.append(Text(row, "bold green" if trial is best else _STYLES.get(trial.status, "")))
    if hidden := _left_out(view, trials):
        lines.append(Text(clipped(hidden, width), "dim"))
    return lines


def shown_trials(view: ExperimentView, room: int) -> list[Trial]:
    """The best trial, then running, paused, recently ended and failed ones, as far as there is room."""
    best = view.best_trial()
    newest_errors = list(islice(reversed(view.errors), max(0, room)))
    for_errors = min(len(newest_errors), _ROWS_FOR_ERRORS, max(0, room) // 4)
    in_order = chain([best] if best is not None else [], view.running, view.paused, reversed(view.recently_ended))
    chosen = list(_distinct(in_order, room - for_errors))
    return list(_distinct([*chosen, *newest_errors], room))


def _distinct(trials: Iterable[Trial], limit: int) -> Iterator[Trial]:
    return islice(dict.fromkeys(islice(trials, max(0, limit) + 1)), max(0, limit))


def _left_out(view: ExperimentView, trials: list[Trial]) -> str:
    """Says how many running, paused and failed trials are not in the table; others are only counted in the head."""
    parts = []
    for word, members in (("running", view.running), ("paused", view.paused), ("failed", view.errors)):
        if hidden := len(members) - sum(trial in members for trial in trials):
            parts.append(f"{hidden} more {word}")
    return f"… {', '.join(parts)}" if parts else ""


def _wrapped(words: list[str], width: int) -> list[str]:
    """Facts joined by dots, broken between facts where the line is full."""
    lines = [words[0]]
    for word in words[1:]:
        longer = f"{lines[-1]} · {word}"
        if cell_width(longer) <= width or len(lines) == _MOST_HEAD_LINES:
            lines[-1] = longer
        else:
            lines.append(word)
    return [clipped(line, width) for line in lines]
