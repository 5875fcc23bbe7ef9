"""What a run has reached, and how it ends: failures that are retried or not, the result, the last record.

What follows from a failure is decided in failure_policy.py; only the run acts on it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from paceline.air.constants import TIME_TOTAL_S, TRAINING_ITERATION
from paceline.air.errors import AttemptFailure, ConfigError, FailureKind, TrainingFailedError, WorkerFailure
from paceline.air.metrics import number_in, reported
from paceline.air.result import Result, Status
from paceline.engine.failures import ENGINE_LOST
from paceline.run import root_cause
from paceline.run.alignment import Alignment
from paceline.run.attempt import pickled_task
from paceline.run.decisions import Change
from paceline.run.failure_policy import GiveUp, Retry, decide_retry, is_charged
from paceline.run.found_runs import restore_line
from paceline.run.history import with_metrics_of
from paceline.run.opening import OpenRun
from paceline.run.raised_error import training_failed
from paceline.run.records import AttemptFailed, Ended, Reached
from paceline.run.retention import KeptCheckpoint
from paceline.run.run_summary import add_checkpoints
from paceline.run.spec import RunSpec
from paceline.storage.files import write_durably

_MOST_WARNINGS, _LONGEST_WARNING = 50, 4000
"""Of those that the last record repeats: it is read whenever a run is listed."""


class ReachedSoFar:
    """What the attempts of a run have come to so far; the result is made of it."""

    def __init__(self, spec: RunSpec, parts: OpenRun) -> None:
        self.spec = spec
        """A change between two attempts may replace it."""
        self.is_changed = False
        """The run continues by another spec than it began with."""
        self.attempts = parts.files.attempts_so_far
        self.world_size = parts.files.records.world_size if parts.files.records else 0
        """Of the last attempt; 0 before the first one."""
        self.index = parts.files.last_row
        """The row at which the last attempt ended."""
        self.rank_metrics: dict[int, dict[str, Any]] = {}
        self.steps: dict[int, int] = {}
        """The last report of each rank in the last attempt; empty if it did not come up."""
        self._start_index = 0
        self._reporting: set[int] = set()
        """The ranks that have ever reported."""
        self._furthest = parts.files.last_row
        """The highest report that every rank of some attempt has reached."""
        self._parts = parts
        self._failures: list[AttemptFailure] = []
        self._end: Ended | None = None
        """As it was written down."""
        self._newest_before: KeptCheckpoint | None = None
        """The newest checkpoint when the last attempt started: another one is progress."""
        self._taken_over: tuple[int, Mapping[str, Any]] | None = None
        """Since which row another run's state has taken the place of this one's, and the row it came with."""

    # -- attempts -------------------------------------------------------------------------

    def starts(self) -> None:
        """Another attempt begins."""
        keeper = self._parts.keeper
        keeper.attempt = self.attempts
        self.attempts += 1
        self.steps = {}
        self._newest_before = keeper.newest

    def came_up(self, world_size: int) -> None:
        """Its workers are there. An elastic run tells the user how many there are."""
        if self.spec.scaling.is_elastic and world_size != self.world_size:
            self._parts.observers.resized(world_size, self.world_size)
        self.world_size = world_size

    def did_not_start(self) -> None:
        """There was no room for it after all."""
        self.attempts -= 1

    def change(self, change: Change) -> None:
        """Make a change between two attempts."""
        change.take_over(self._parts.keeper, self.index)
        if change.donor is not None:
            self._taken_over = (self.index, change.donor.row)
        if change.spec is not None:
            self.spec, self.is_changed = change.spec, True
            self._parts.task = pickled_task(change.spec, self._parts.data.packed, self._parts.data.preprocessor)

    def failed(self, failures: Sequence[WorkerFailure]) -> Retry | GiveUp:
        """Write a failed attempt down, and decide whether there is another one."""
        keeper, backend = self._parts.keeper, self.spec.backend_config.backend_cls
        failure = root_cause.attempt_failure(keeper.attempt, failures, backend, self.steps)
        cause = failure.root_cause
        made_progress = self._came_further() or keeper.newest is not self._newest_before
        self._failures.append(replace(failure, is_charged=is_charged(cause.kind), made_progress=made_progress))
        self._parts.write_down(_failure_record(self._failures[-1]))
        if cause.kind == "startup" and cause.exception_type == ENGINE_LOST:
            self.attempts -= 1  # It found the engine gone: nothing was attempted.
        return decide_retry(self.spec.run_config.failure_config, self._failures)

    def _came_further(self) -> bool:
        """Whether the ranks that report have all passed the highest report of the attempts before.

        Some ranks may never report. One that did so before counts: another may be a report ahead of it.
        """
        self._reporting.update(rank for rank, step in self.steps.items() if step > self._start_index)
        reached = min((step for rank, step in self.steps.items() if rank in self._reporting), default=0)
        came_further = reached > self._furthest
        self._furthest = max(reached, self._furthest)
        return came_further

    @property
    def others_report(self) -> bool:
        """Whether a rank other than 0 has ever reported."""
        return any(self._reporting)

    @property
    def last_kind(self) -> FailureKind:
        """Of the last failure."""
        return self._failures[-1].root_cause.kind

    @property
    def last_cause(self) -> str:
        """Of the last failure."""
        return _failure_record(self._failures[-1]).in_words

    # -- the end --------------------------------------------------------------------------

    def final_error(self, reason: str) -> TrainingFailedError:
        """What fit() raises when nothing is tried any more."""
        again = self._how_to_continue()
        last_line = f"\n\nTo continue: {again}" if again else ""  # where people look first
        message = root_cause.describe(self._failures, reason) + last_line
        error = training_failed(message, self._failures)
        error.brief = root_cause.describe(self._failures, reason, with_traceback=False) + last_line
        return error

    def _how_to_continue(self) -> str:
        """Nothing to say of a trial, which its search continues, nor where everything was in memory only."""
        files, keeper = self._parts.files, self._parts.keeper
        if self.spec.place is not None or keeper.in_memory:
            return ""
        place = str(files.run_dir.root) if files.mirror is None else files.mirror.filesystem.label
        return restore_line(self.spec.trainer_name, place, self.spec.again)

    def workers_ended(self, alignment: Alignment | None) -> None:
        """Take over where the ranks of an attempt were; None if it did not come up."""
        self.rank_metrics = alignment.metrics if alignment is not None else {}
        self.steps = dict(enumerate(alignment.last_index)) if alignment is not None else {}
        self._start_index = alignment.start_index if alignment is not None else 0

    def read_back(self) -> None:
        """The last row and metrics that survive, for an attempt that reported nothing itself."""
        self._parts.observers.last_row = self._parts.history.last_row()
        self.rank_metrics = self._parts.history.last_rank_metrics()

    def write_end(self, status: Status, error: Exception | None) -> Result:
        """Write the end down; what the run has come to."""
        parts = self._parts
        parts.pass_on_warnings()
        parts.files.journal.flush()
        if 0 not in self.rank_metrics:
            self.read_back()
        if (remark := parts.decider.remark(parts.observers.last_row or {})) is not None:
            parts.warn(remark)
        result = self.result(status, error)
        if error is not None:
            text = str(error) if isinstance(error, TrainingFailedError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):  # for people to read; the journal has it, too
                write_durably(parts.files.run_dir.error_txt, text.encode("utf-8", "backslashreplace") + b"\n")
        parts.observers.write_out()
        self._end = self._end_record(result)
        parts.write_down(self._end)
        return result

    def write_late_warnings(self, result: Result) -> None:
        """Trackers say at the very end what they could not deliver: then the end is written once more, with that."""
        if self._end is not None and (warnings := _shortened(result.warnings)) != self._end.warnings:
            with contextlib.suppress(OSError):  # the run has ended, and the user has read them
                self._parts.write_down(msgspec.structs.replace(self._end, warnings=warnings))

    def _end_record(self, result: Result) -> Ended:
        keeper, records, row = self._parts.keeper, self._parts.files.records, self._parts.observers.last_row or {}
        reached = Reached(
            iteration=number_in(row, TRAINING_ITERATION),
            time_total_s=float(number_in(row, TIME_TOTAL_S)),
            attempts=self.attempts,
            world_size=self.world_size,
            metrics=reported(row),
            error=self.last_cause if self._failures else records.last_cause if records else "",
        )
        if keeper.committed and not keeper.in_memory:
            add_checkpoints(reached, keeper.committed, keeper.config)
        return Ended(
            status=result.status,
            message=str(result.error or ""),
            time=time.time(),
            reached=reached,
            warnings=_shortened(result.warnings),
        )

    def result_without_storage(self, status: Status, error: Exception | None) -> Result:
        """A full or deleted store may refuse even the end: the error still says what was reached."""
        observers = self._parts.observers
        with contextlib.suppress(OSError):  # rows that did not get into the journal are lost
            self.read_back()
            observers.trial.last_result = observers.last_row or {}
        return self.result(status, error)

    def result(self, status: Status, error: Exception | None = None) -> Result:
        observers, keeper, files = self._parts.observers, self._parts.keeper, self._parts.files
        row = observers.last_row if observers.last_row is not None else observers.trial.last_result
        if self._taken_over is not None and self._taken_over[0] == self.index:
            row = with_metrics_of(self._taken_over[1], row, self.spec.config)
        is_rejected = isinstance(error, ConfigError) and not row  # Restored as it is, it would be rejected again.
        result = Result(
            metrics={"config": dict(self.spec.config), **row, "done": True},  # also if no attempt came up
            checkpoint=keeper.newest_checkpoint(),
            error=error,
            log_dir=files.run_dir.root,
            path=files.mirror.filesystem.label if files.mirror is not None else "",
            filesystem=self.spec.run_config.storage_filesystem,
            best_checkpoints=keeper.best_checkpoints(),
            rank_metrics=dict(sorted(self.rank_metrics.items())),
            warnings=list(observers.warnings),
            attempts=self.attempts,
            status=status,
            how_to_continue="" if status == "finished" or is_rejected else self._how_to_continue(),
            _history=self._parts.history,
        )
        if error is not None:
            vars(error)["result"] = result
        return result


def _shortened(warnings: list[str]) -> list[str]:
    return [warning[:_LONGEST_WARNING] for warning in warnings[-_MOST_WARNINGS:]]


def _failure_record(failure: AttemptFailure) -> AttemptFailed:
    cause = failure.root_cause
    return AttemptFailed(
        attempt=failure.attempt,
        rank=cause.rank,
        cause=cause.kind,
        message=cause.message,
        traceback=cause.traceback,
        charged=failure.is_charged,
        time=time.time(),
    )
