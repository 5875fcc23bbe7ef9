"""Who watches an experiment: the user's callbacks, the loggers and the display, shared by all trials.

Code of the user's own that raises ends the experiment; what goes wrong with one trial does
not. So the calls of such code go through `guarded`, which remembers the error as its.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.config import RunConfig
from paceline.air.result import Result
from paceline.run.callbacks import CallbackList
from paceline.run.history import JournalHistory
from paceline.run.loggers import default_loggers
from paceline.run.observers import Observers, Progress
from paceline.run.stoppers import make_stopper
from paceline.storage.run_dir import RunDir
from paceline.tune.progress.progress import ExperimentProgress, make_experiment_progress
from paceline.tune.progress.view import ExperimentEnd, ExperimentView

if TYPE_CHECKING:
    from paceline.run.spec import Trial


class Audience:
    """The onlookers of an experiment."""

    def __init__(self, config: RunConfig, view: ExperimentView) -> None:
        self.callbacks = CallbackList(config.callbacks, default_loggers())
        self.stopper = make_stopper(config.stop)
        self.view = view
        self.progress: ExperimentProgress | None = None
        """None: nothing is shown, and the view is not kept up to date."""
        if config.verbose > 0:
            self.progress = make_experiment_progress(config.verbose, config.progress_reporter)
        self.user_error: Exception | None = None
        """What a callback, a stopper, a scheduler or a searcher raised."""
        self._guard = _Guard(self)
        self._config = config
        self._warned_of: set[str] = set()

    def started(self, num_samples: int, total: int | None) -> None:
        if self.progress is not None:
            self.progress.started(self.view)
        with self.guarded():
            self.callbacks.setup(
                stop=self._config.stop, num_samples=num_samples, total_num_samples=total, say=self.note
            )

    def trial_changed(
        self, trial: Trial, row: Mapping[str, Any] | None = None, error: BaseException | None = None
    ) -> None:
        """A trial is new, has another status, or has ended with this row or this error."""
        if self.progress is None:
            return
        if error is not None:
            self.view.note_error(trial, error)
        if row:
            self.view.note_row(trial, row)
        self.view.note_status(trial)
        self.progress.trial_changed(trial)

    def note(self, text: str) -> None:
        """Something that happened."""
        if self.progress is not None:
            self.progress.note(text)

    def warn(self, text: str) -> None:
        """Something the user should know."""
        if self.progress is not None:
            self.progress.warning(text)

    def warn_once(self, text: str) -> None:
        if text not in self._warned_of:
            self._warned_of.add(text)
            self.warn(text)

    def tick(self) -> None:
        """Time has passed."""
        self._warn_for_callbacks()
        if self.progress is not None:
            self.progress.tick()

    def ended(self) -> None:
        with self.guarded():
            self.callbacks.on_experiment_end()
        self._warn_for_callbacks()

    def _warn_for_callbacks(self) -> None:
        with self.guarded():
            for text in self.callbacks.take_warnings():
                self.warn(text)

    def finished(self, end: ExperimentEnd) -> None:
        """The last words."""
        if self.progress is not None:
            self.progress.finished(end)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.close()

    def guarded(self) -> _Guard:
        """For a block that calls code of the user's own."""
        return self._guard


class _Guard:
    """Remembers what is raised in its block. One object for all blocks: each row passes through several."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and self._audience.user_error is None:
            self._audience.user_error = error


class TrialProgress(Progress):
    """What a run shows, passed on to the display of the experiment."""

    def __init__(self, shared: ExperimentProgress, view: ExperimentView, trial: Trial) -> None:
        self._shared = shared
        self._view = view
        self._trial = trial
        self._alone = True

    def started(self, trial: Trial, run_dir: Path | str, world_size: int | tuple[int, int]) -> None:
        self._alone = world_size == 1

    @property
    def is_due(self) -> bool:
        return self._shared.is_due

    def row(self, row: Any) -> None:
        self._view.note_row(self._trial, row)
        self._shared.row(self._trial, row)

    def attempt_failed(self, summary: str, *, retry: bool, charged: bool) -> None:
        if retry:
            what = "failed" if charged else "ended"
            self._shared.note(f"{self._trial} {what} and starts again: {summary}")

    def output(self, rank: int, text: str) -> None:
        self._shared.output(self._trial, None if self._alone else rank, text)

    def warning(self, text: str) -> None:
        self._shared.warning(f"{self._trial}: {text}")


class TrialObservers(Observers):
    """The onlookers of one trial: those of the experiment."""

    def __init__(self, config: RunConfig, trial: Trial, run_dir: RunDir, *, audience: Audience) -> None:
        shown = audience.progress
        progress = None if shown is None else TrialProgress(shown, audience.view, trial)
        super().__init__(config, trial, run_dir, callbacks=audience.callbacks, progress=progress)
        self._audience = audience

    def started(
        self,
        notes: list[str],
        world_size: int | tuple[int, int],
        logs: Mapping[int, Path],
        *,
        continues: bool,
        had_finished: bool = False,
    ) -> None:
        with self._audience.guarded():
            super().started(notes, world_size, logs, continues=continues, had_finished=had_finished)
        self._audience.trial_changed(self.trial)

    def attempt_resumed(self, index: int, history: JournalHistory) -> None:
        with self._audience.guarded():
            super().attempt_resumed(index, history)

    def row(self, index: int, row: dict[str, Any]) -> None:
        with self._audience.guarded():
            super().row(index, row)

    def checkpoint(self, index: int, number: int, checkpoint: Checkpoint) -> None:
        with self._audience.guarded():
            super().checkpoint(index, number, checkpoint)

    def catch_up(self) -> None:
        with self._audience.guarded():
            super().catch_up()

    def write_out(self) -> None:
        with self._audience.guarded():
            super().write_out()

    def finished(self, result: Result, iteration: int) -> None:
        stopper = self._audience.stopper
        with self._audience.guarded():
            super().finished(result, iteration)
            if stopper is not None and (text := stopper.never_reported(self.trial.trial_id, result.metrics)):
                self._audience.warn_once(text)
