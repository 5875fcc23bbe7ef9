"""Lets a `ProgressReporter` show the trials, and says the rest in plain lines."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.run.terminal import GuardedWriter
from paceline.tune.progress.base import ExperimentSummary, ExperimentView, place_in_users_code
from paceline.tune.progress.plain import PlainExperimentProgress
from paceline.tune.progress.texts import resources_text, scheduler_text

if TYPE_CHECKING:
    from paceline.run.trial import Trial
    from paceline.tune.progress.reporters import ProgressReporter

_ASKING_INTERVAL_S = 0.125
"""A reporter is asked so often whether it wants to report: it may look at every trial."""


class ReporterProgress(PlainExperimentProgress):
    """Asks the reporter now and then. One that raises is not asked again, and the experiment goes on."""

    def __init__(self, writer: GuardedWriter, reporter: ProgressReporter, verbose: int) -> None:
        super().__init__(writer, detailed=verbose > 1, interval_s=_ASKING_INTERVAL_S)
        self._reporter: ProgressReporter | None = reporter
        self._verbose = verbose

    def started(self, view: ExperimentView) -> None:
        super().started(view)
        self._next_state_at = 0.0
        self._guarded(self._introduce, view)

    def trial_changed(self, trial: Trial) -> None:
        if trial.status == "ERROR":  # the others are in the reporter's table
            super().trial_changed(trial)

    def finished(self, summary: ExperimentSummary) -> None:
        if self._view is not None:
            self._guarded(self._ask, self._view, True)
        super().finished(summary)

    def _show_state(self) -> None:
        if self._view is not None:
            self._guarded(self._ask, self._view, False)
        self._next_state_at = time.monotonic() + self._interval_s

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
            self._writer.write(self._prefixer.end_line())
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
