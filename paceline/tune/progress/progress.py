"""What the user sees of a search while it is at work, in words; how it is shown is the display's.

The terminal's picture: the state in a line or two, then the trials that matter most.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TextIO

from paceline.run.display import (
    PLAIN_INTERVAL_S,
    Display,
    GuardedWriter,
    Line,
    PlainDisplay,
    clipped,
    make_display,
    mention_page,
    wrapped,
)
from paceline.tune.progress.table import Column, Table, metric_columns, parameter_columns, table_of
from paceline.tune.progress.texts import (
    closing_lines,
    error_line,
    facts,
    one_line,
    output_prefix,
    resources_text,
    scheduler_text,
    short_name,
    start_line,
    trial_line,
)
from paceline.tune.progress.view import BestSoFar, ExperimentEnd, ExperimentView, place_in_users_code

if TYPE_CHECKING:
    from paceline.air.html import Markup
    from paceline.run.spec import Trial
    from paceline.tune.progress.reporters import ProgressReporter

_STYLES = {"RUNNING": "", "PAUSED": "yellow", "PENDING": "dim", "TERMINATED": "dim", "ERROR": "red"}
_MOST_HEAD_LINES = 3
_METRICS_INFERRED = 3
_LONGEST_CELL = 20
_TRIALS_IN_A_NOTEBOOK = 15
_ROWS_FOR_ERRORS = 3
"""Failed trials keep so many rows even where running ones could fill the screen."""
_ASKING_INTERVAL_S = 0.125
"""A reporter is asked so often whether it wants to report: it may look at every trial."""


class ExperimentProgress:
    """Says what happens to an experiment. It is also the picture of it that its display shows."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._view: ExperimentView | None = None
        self._end: ExperimentEnd | None = None
        self._best_so_far = BestSoFar()

    def started(self, view: ExperimentView) -> None:
        """The experiment begins. The view stays the same object and is kept up to date."""
        if not self._display.speaks:
            return  # without a view nothing is put into words
        self._view = view
        self._display.say(start_line(view), "bold")
        mention_page(self._display, os.path.dirname(view.experiment_path))
        self._display.start(self, first_after_s=PLAIN_INTERVAL_S)

    @property
    def is_due(self) -> bool:
        """The next row makes the display write a line."""
        return self._display.is_due

    def row(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """A trial reported a row. Called for every row, so it must cost next to nothing."""
        self._display.refresh()

    def trial_changed(self, trial: Trial) -> None:
        """A trial is new or has another status; the view knows already."""
        if self._view is None:
            return
        if trial.status == "ERROR":
            self._display.say(f"Failed: {error_line(trial, self._view.errors.get(trial, ''))}", "red")
        elif trial.status == "TERMINATED":
            self._display.detail(trial_line(trial, self._view.metric))
        self._display.redraw()

    def output(self, trial: Trial, rank: int | None, text: str) -> None:
        """A worker wrote something, as `LogFollower` delivers it. No rank: it is the trial's only worker."""
        self._display.output(output_prefix(trial, rank), text)

    def note(self, text: str) -> None:
        """Something that happened."""
        self._display.say(text, "bold")

    def warning(self, text: str) -> None:
        """Something the user should know."""
        self._display.say(f"Warning: {text}", "yellow")

    def tick(self) -> None:
        """Time has passed. Called now and then while nothing else happens."""
        self._display.refresh()

    def finished(self, summary: ExperimentEnd) -> None:
        """The experiment has ended, well or not."""
        self._end = summary
        self._display.stop()
        if self._view is not None:
            good = summary.status == "finished" and not self._view.errors
            heading, *rest = closing_lines(self._view, summary)
            self._display.say(heading, "bold green" if good else "bold red")
            self._display.say("\n".join(rest))

    def close(self) -> None:
        """Leave the terminal as it was. Called last, whatever happened; may be called twice."""
        self._display.close()

    # -- the picture ----------------------------------------------------------------------

    def line(self) -> str:
        assert self._view is not None
        return f"{self._view.name}: {', '.join(facts(self._view))}"

    def frame(self, width: int, height: int) -> list[Line]:
        assert self._view is not None
        return frame_lines(self._view, width, height)

    def html(self) -> Markup:
        from paceline.tune.progress.search_html import search_html

        assert self._view is not None
        trials = shown_trials(self._view, _TRIALS_IN_A_NOTEBOOK)
        columns = trial_columns(self._view, trials)
        self._best_so_far.look(self._view)
        return search_html(self._view, trials, columns, _left_out(self._view, trials), self._best_so_far, self._end)


class ReporterProgress(ExperimentProgress):
    """Lets a `ProgressReporter` show the trials, and says the rest in plain lines.

    The reporter is asked now and then. One that raises is not asked again, and the experiment continues.
    """

    def __init__(self, display: PlainDisplay, reporter: ProgressReporter, verbose: int) -> None:
        super().__init__(display)
        self._writes = display
        self._reporter: ProgressReporter | None = reporter
        self._verbose = verbose
        self._next_question_at = 0.0

    def started(self, view: ExperimentView) -> None:
        self._view = view
        self._display.say(start_line(view))
        mention_page(self._display, os.path.dirname(view.experiment_path))
        self._guarded(self._introduce, view)

    def row(self, trial: Trial, row: Mapping[str, Any]) -> None:
        self.tick()

    def tick(self) -> None:
        if self._view is not None and time.monotonic() >= self._next_question_at:
            self._guarded(self._ask, self._view, False)
            self._next_question_at = time.monotonic() + _ASKING_INTERVAL_S

    def trial_changed(self, trial: Trial) -> None:
        if trial.status == "ERROR":  # the others are in the reporter's table
            super().trial_changed(trial)

    def finished(self, summary: ExperimentEnd) -> None:
        if self._view is not None:
            self._guarded(self._ask, self._view, True)
        super().finished(summary)

    def _introduce(self, reporter: ProgressReporter, view: ExperimentView) -> None:
        metric, mode = view.metric, view.mode
        reporter.set_search_properties(metric, mode)
        reporter.setup(
            start_time=time.time() - view.elapsed_s(),
            total_samples=view.total,
            metric=metric,
            mode=mode,
            verbose=self._verbose,
        )

    def _ask(self, reporter: ProgressReporter, view: ExperimentView, done: bool) -> None:
        if reporter.should_report(view.trials, done=done):
            self._writes.end_line()
            reporter.report(view.trials, done, resources_text(view), scheduler_text(view))

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        if self._reporter is None:
            return
        try:
            action(self._reporter, *arguments)
        except Exception as error:
            name = type(self._reporter).__name__
            self._reporter = None
            place = place_in_users_code("".join(traceback.format_exception(error)))
            where = f" ({place})" if place else ""
            self.warning(f"The progress reporter {name} is left out from now on, it raised {error!r}{where}.")


def make_experiment_progress(verbose: int, reporter: Any = None, stream: TextIO | None = None) -> ExperimentProgress:
    """The progress for `RunConfig(verbose=..., progress_reporter=...)`.

    0 is silent, 1 shows start, errors and summary, 2 and 3 show everything. A reporter
    replaces the built-in table and status lines.
    """
    if verbose <= 0 or reporter is None:
        return ExperimentProgress(make_display(verbose, stream))
    writer = GuardedWriter(stream if stream is not None else sys.stdout)
    return ReporterProgress(PlainDisplay(writer, detailed=verbose > 1), reporter, verbose)


def frame_lines(view: ExperimentView, width: int, height: int) -> list[Line]:
    """What one drawing shows: at most `height` lines, none wider than `width`."""
    head = [(line, "bold") for line in wrapped([one_line(view.name), *facts(view)], width, _MOST_HEAD_LINES)]
    if scheduler := scheduler_text(view):
        head.append((clipped(scheduler, width), "dim"))
    room = height - len(head) - 3  # an empty line, the heading, and how many are left out
    trials = shown_trials(view, room)
    table = _table(view, trials, width)
    if table.left_out and len(trials) == room:
        trials = trials[:-1]  # they are named in a line of their own
        table = _table(view, trials, width)
    if not trials:
        return head[: max(1, height)]
    best = view.best_trial()
    heading, *rows = table.lines
    lines = [*head, ("", ""), (heading, "dim")]
    for trial, row in zip(trials, rows, strict=True):
        lines.append((row, "bold green" if trial is best else _STYLES.get(trial.status, "")))
    if hidden := _left_out(view, trials):
        lines.append((clipped(hidden, width), "dim"))
    if missing := table.missing_line(width):
        lines.append((missing, "dim"))
    return lines


def _table(view: ExperimentView, trials: list[Trial], width: int) -> Table:
    return table_of(trial_columns(view, trials), trials, width, _LONGEST_CELL)


def trial_columns(view: ExperimentView, trials: list[Trial]) -> list[Column]:
    best = view.best_trial()
    return [
        Column("trial", lambda trial: f"{'★' if trial is best else ' '}{short_name(trial)}"),
        Column("status", lambda trial: trial.status, rank=1),
        *parameter_columns(trials),
        *metric_columns(trials, view.metric, _METRICS_INFERRED),
    ]


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
