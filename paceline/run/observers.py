"""Everybody who looks on: the user's callbacks, the loggers, the progress display, the workers' output.

They see what the run has already done; none of them is part of how it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from paceline.air.checkpoint import Checkpoint
from paceline.air.config import RunConfig
from paceline.air.constants import TRAINING_ITERATION, VALIDATION
from paceline.air.result import Result
from paceline.air.validation import with_validation
from paceline.run.callbacks import CallbackList
from paceline.run.history import JournalHistory
from paceline.run.log_times import LogTimes
from paceline.run.loggers import default_loggers
from paceline.run.records import RankUse
from paceline.run.resume_notice import Notice
from paceline.run.spec import Trial
from paceline.run.timing import StepTimes
from paceline.run.worker_logs import LogFollower, LogRotation, LogWatcher, older_log
from paceline.storage.run_dir import RunDir


@dataclass(frozen=True)
class RankState:
    """One worker at a glance."""

    rank: int
    iteration: int
    """How far it has reported."""
    state: Literal["running", "ended", "failed"]
    times: StepTimes | None = None
    """Of its last steps."""
    use: RankUse | None = None


class Progress:
    """What the user is shown of a run while it is at work. This one shows nothing: it is for `verbose=0`."""

    @property
    def is_due(self) -> bool:
        """The next row gets a line of its own, so that what workers printed before must be shown before it."""
        return False

    def started(self, trial: Trial, run_dir: Path | str, world_size: int | tuple[int, int]) -> None:
        """The run begins: its workers are to be started; of an elastic run, the least and the most."""

    def resized(self, world_size: int, before: int) -> None:
        """The next attempt of an elastic run has another number of workers than the one before; 0 if there was none."""

    def reopened(self, trial: Trial, run_dir: Path | str) -> None:
        """The run had finished before: only its result is shown again."""

    def row(self, row: Mapping[str, Any]) -> None:
        """A row was reported. Called for every row, so it must cost next to nothing."""

    def checkpoint(self, number: int, path: Path | str) -> None:
        """A checkpoint was committed."""

    def validated(self, name: str, index: int, metrics: Mapping[str, Any]) -> None:
        """The validation of a checkpoint is over."""

    def workers(self, ask: Callable[[], list[RankState]]) -> None:
        """Workers are at work; `ask` says how far each is. It may be asked after they have ended, too."""

    def attempt_failed(self, summary: str, *, retry: bool, charged: bool) -> None:
        """An attempt failed, or ended without being `charged`; `retry` says whether another one follows."""

    def output(self, rank: int, text: str) -> None:
        """A worker wrote something, as `LogFollower` delivers it."""

    def note(self, text: str) -> None:
        """Something that happened."""

    def warning(self, text: str) -> None:
        """Something the user should know."""

    def tick(self) -> None:
        """Time has passed. Called now and then while nothing else happens."""

    def suspend(self) -> None:
        """The user's terminal is needed for a debugger: show nothing until `resume`, and then what was missed."""

    def resume(self) -> None:
        """The terminal is free again."""

    def finished(self, result: Result) -> None:
        """The run has ended, well or not."""

    def close(self) -> None:
        """Leave the terminal as it was. Called last, whatever happened; may be called twice."""


class Observers:
    """The onlookers of one run."""

    def __init__(
        self,
        config: RunConfig,
        trial: Trial,
        run_dir: RunDir,
        *,
        callbacks: CallbackList | None = None,
        progress: Progress | None = None,
    ) -> None:
        """The last two are given where several runs share them; else they are made from `config`."""
        self.trial = trial
        self.warnings: list[str] = []
        self.last_row: dict[str, Any] | None = None
        """With the metrics of its validation, if there are some."""
        self._last_index = 0
        self._config = config
        self._run_dir = run_dir
        self._shares = callbacks is not None
        self._callbacks = callbacks or CallbackList(config.callbacks, default_loggers())
        self._progress = progress or make_progress(
            config.verbose, metric=config.checkpoint_config.checkpoint_score_attribute
        )
        self._follower: LogFollower | None = None
        self._rotation: LogRotation | None = None
        self._times: LogTimes | None = None
        self._new_rows: list[dict[str, Any]] = []
        self._closed = False
        self._is_over = False
        """The closing lines are said, and nothing comes after them."""

    # -- beginnings -----------------------------------------------------------------------

    def engine_chosen(self, announcement: str) -> None:
        """Where workers will run; empty if that needs no words. A search says it once for all of its trials."""
        if announcement and not self._shares:
            self._progress.note(announcement)

    def started(
        self,
        notes: list[str],
        world_size: int | tuple[int, int],
        logs: Mapping[int, Path],
        *,
        continues: bool,
        had_finished: bool = False,
    ) -> None:
        """The run begins, or is taken up again. Its workers write the logs, by rank."""
        if had_finished:
            self._progress.reopened(self.trial, self._run_dir.root)
        else:
            self._progress.started(self.trial, self._run_dir.root, world_size)
        for note in notes:
            self._progress.warning(note)
        if logs:
            if self._config.verbose > 1:
                self._follower = LogFollower(logs, from_end=continues)
            self._times = LogTimes(logs, {rank: older_log(path) for rank, path in logs.items()})
            watchers: list[LogWatcher] = [self._times, *([self._follower] if self._follower is not None else [])]
            self._rotation = LogRotation(logs, self._config.max_log_bytes, watchers, self.warn, self._times.truncated)
        self.trial.status, self.trial.outcome = "RUNNING", None
        if not self._shares:
            self._callbacks.setup(stop=self._config.stop, num_samples=1, total_num_samples=1, say=self._progress.note)
        self._callbacks.on_trial_start(0, self.trial)

    def attempt_started(self, first_row: dict[str, Any]) -> None:
        """Workers are at work."""
        if self.last_row is None:
            self.trial.last_result = first_row

    def resized(self, world_size: int, before: int) -> None:
        """Another attempt of an elastic run has started, with another number of workers."""
        self._progress.resized(world_size, before)

    def explain(self, notice: Notice) -> None:
        """Where an attempt begins, why there, and what differs."""
        for line in notice.lines:
            self._progress.note(line)
        if notice.versions_differ:
            self.warn(notice.warning)
        elif notice.warning:
            self._progress.warning(notice.warning)

    def attempt_resumed(self, index: int, history: JournalHistory) -> None:
        """Workers take up the work after `index`: rows beyond it are superseded."""
        self._callbacks.rewind(self.trial, index, history.rows_from)
        self._callbacks.on_trial_restore(index, self.trial)

    def workers(self, ask: Callable[[], list[RankState]]) -> None:
        """How to ask after the workers of this attempt."""
        self._progress.workers(ask)

    # -- while it runs --------------------------------------------------------------------

    def row(self, index: int, row: dict[str, Any]) -> None:
        """A row is in the journal. Callbacks still find the row before it in `trial.last_result`."""
        callbacks = self._callbacks
        if callbacks.wants_rows:
            callbacks.on_step_begin(index)
            callbacks.on_trial_result(index, self.trial, row)
            callbacks.on_step_end(index)
        self.trial.last_result = self.last_row = row
        self._last_index = index
        self._new_rows.append(row)

    def checkpoint(self, index: int, number: int, checkpoint: Checkpoint) -> None:
        """A checkpoint is committed."""
        self.trial.checkpoint = checkpoint
        self._progress.checkpoint(number, checkpoint.path or "memory")
        self._callbacks.on_checkpoint(index, self.trial, checkpoint)

    def validated(self, index: int, name: str, metrics: Mapping[str, Any], counters: Mapping[str, Any]) -> None:
        """The validation of the checkpoint of a row is over. Callbacks do not see its metrics, nor do stoppers."""
        late = {TRAINING_ITERATION: index, **counters, VALIDATION: metrics}
        self._callbacks.log_validation(self.trial, late)
        if self._last_index == index and self.last_row is not None:
            self.last_row = with_validation(self.last_row, metrics)
        self._progress.validated(name, index, metrics)

    def note(self, text: str) -> None:
        self._progress.note(text)

    def catch_up(self) -> None:
        """Work off what may lag behind: logged rows in one batch, the workers' output, the display."""
        rows, self._new_rows = self._new_rows, []
        if rows:
            self._callbacks.log_rows(self.trial, rows)
        else:
            self._callbacks.flush(force=False)
        self._pass_on_warnings()
        if self._times is not None and self._rotation is not None:
            self._times.look()
            self._rotation.look()
        # What a worker printed before it reported is in its log before the report is here.
        self._show_output(everything=bool(rows) and self._progress.is_due)
        for row in rows:
            self._progress.row(row)
        self._progress.tick()

    def _pass_on_warnings(self) -> None:
        """Show what callbacks that work in the background have found; those of a search are asked by the search."""
        if not self._shares:
            for text in self._callbacks.take_warnings():
                self.warn(text)

    def suspend_display(self) -> None:
        """The user's terminal is needed for a debugger. What workers have printed so far is shown before."""
        self._show_output(everything=True)
        self._progress.suspend()

    def resume_display(self) -> None:
        self._progress.resume()

    def write_out(self) -> None:
        """The loggers' files are complete: nobody comes back to a run whose journal says that it has ended."""
        self.catch_up()
        self._callbacks.flush()

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        self._show_output(everything=True)
        self._progress.warning(text)

    def attempt_failed(self, summary: str, *, retry: bool, charged: bool) -> None:
        self.catch_up()
        self._show_remaining_output()
        self._progress.attempt_failed(summary, retry=retry, charged=charged)

    # -- the end --------------------------------------------------------------------------

    def finished(self, result: Result, iteration: int) -> None:
        """The run is over, well or not."""
        self.catch_up()
        self._show_remaining_output()
        self.trial.status, self.trial.outcome = "ERROR" if result.error else "TERMINATED", result.status
        self.trial.last_result = result.metrics or self.trial.last_result
        self.trial.error = result.error
        if result.error:
            self._callbacks.on_trial_error(iteration, self.trial)
        else:
            self._callbacks.on_trial_complete(iteration, self.trial)
        self._close_loggers(failed=result.error is not None)
        if not self._shares:
            self._callbacks.on_experiment_end()
            self._pass_on_warnings()
        result.warnings += self.warnings[len(result.warnings) :]  # of work that was under way when the run ended
        self._is_over = True
        self._progress.finished(result)

    def close(self) -> None:
        """Give back files and the terminal; after `finished`, or instead of it when something broke."""
        self._close_loggers(failed=True)
        self._progress.close()
        if self._rotation is not None:  # what was printed since the last look may be longer than the limit
            self._rotation.wait()
            self._rotation.look(at_once=True)
            self._rotation.wait()
        if self._times is not None:
            self._times.close()
        if self._follower is not None:
            self._follower.close()

    def _close_loggers(self, failed: bool) -> None:
        if not self._closed:
            self._closed = True
            self._callbacks.close_trial(self.trial, failed=failed)

    def _show_output(self, *, everything: bool) -> None:
        if self._follower is not None and not self._is_over:
            for rank, text in self._follower.read_all() if everything else self._follower.read():
                self._progress.output(rank, text)

    def _show_remaining_output(self) -> None:
        if self._rotation is not None:
            self._rotation.wait()
        if self._times is not None:
            self._times.look(at_once=True)
        if self._follower is not None and not self._is_over:
            for rank, text in self._follower.drain():
                self._progress.output(rank, text)


def make_progress(verbose: int, stream: TextIO | None = None, metric: str | None = None) -> Progress:
    """The progress for `RunConfig(verbose=...)`. `metric` is what the user judges the run by, if that is known."""
    if verbose <= 0:
        return Progress()
    from paceline.run.display import make_display
    from paceline.run.progress import ShownProgress

    return ShownProgress(make_display(verbose, stream), metric)
