"""Plain lines for pipes, files and notebooks: the start, trials that end, the state now and then, the summary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.run.progress import PLAIN_INTERVAL_S
from paceline.run.terminal import GuardedWriter, LinePrefixer, last_overwrite, printable
from paceline.tune.progress.base import ExperimentProgress, ExperimentSummary, ExperimentView
from paceline.tune.progress.texts import closing_lines, error_line, facts, output_prefix, start_line, trial_line

if TYPE_CHECKING:
    from paceline.run.trial import Trial


class PlainExperimentProgress(ExperimentProgress):
    """`detailed` False leaves out trials that end well, the state, and worker output."""

    def __init__(self, writer: GuardedWriter, detailed: bool, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._writer = writer
        self._detailed = detailed
        self._interval_s = interval_s
        self._prefixer = LinePrefixer()
        self._view: ExperimentView | None = None
        self._next_state_at = float("inf")

    def started(self, view: ExperimentView) -> None:
        self._view = view
        self._line(start_line(view))
        if self._detailed:
            self._next_state_at = time.monotonic() + self._interval_s

    def row(self, trial: Trial, row: Mapping[str, Any]) -> None:
        if time.monotonic() >= self._next_state_at:
            self._show_state()

    def tick(self) -> None:
        if time.monotonic() >= self._next_state_at:
            self._show_state()

    def _show_state(self) -> None:
        self._next_state_at = time.monotonic() + self._interval_s
        if self._view is not None:
            self._line(f"{self._view.name}: {', '.join(facts(self._view))}")

    def trial_changed(self, trial: Trial) -> None:
        if self._view is None:
            return
        if trial.status == "ERROR":
            self._line(f"Failed: {error_line(trial, self._view.errors.get(trial, ''))}")
        elif trial.status == "TERMINATED" and self._detailed:
            self._line(trial_line(trial, self._view.metric))

    def output(self, trial: Trial, rank: int | None, text: str) -> None:
        if self._detailed:
            self._writer.write(self._prefixer.prefixed(output_prefix(trial, rank), last_overwrite(text)))

    def note(self, text: str) -> None:
        self._line(printable(text))

    def warning(self, text: str) -> None:
        self._line(f"Warning: {printable(text)}")

    def finished(self, summary: ExperimentSummary) -> None:
        if self._view is not None:
            self._line("\n".join(closing_lines(self._view, summary)))

    def close(self) -> None:
        self._writer.write(self._prefixer.end_line())

    def _line(self, text: str) -> None:
        self._writer.write(f"{self._prefixer.end_line()}{text}\n")
