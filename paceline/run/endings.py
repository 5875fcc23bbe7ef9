"""What a run has reached, and how it ends: failures that are retried or not, the result, the last record.

What follows from a failure is a pure decision; only the run acts on it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.air.config import FailureConfig
from paceline.air.constants import TIME_TOTAL_S, TRAINING_ITERATION
from paceline.air.errors import AttemptFailure, TrainingFailedError, WorkerFailure
from paceline.air.result import Result, Status
from paceline.run import root_cause
from paceline.run.attempt import pickled_task
from paceline.run.backend import Backend
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.continuing import restore_line
from paceline.run.decisions import Change
from paceline.run.history import number_in, reported, with_metrics_of
from paceline.run.opening import OpenRun
from paceline.run.records import AttemptFailed, Ended, Reached
from paceline.run.retention import KeptCheckpoint
from paceline.run.spec import RunSpec
from paceline.run.summary import add_checkpoints
from paceline.storage.files import write_durably

_NEVER_RETRIED = frozenset({"startup", "storage"})
"""A worker that cannot start or a full disk fails the next time too: retrying hides it."""

_LONGEST_DELAY_S = 60.0


@dataclass(frozen=True)
class Retry:
    """Start another attempt after `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """Raise; `reason` says why no (further) retry was made."""

    reason: str


def decide_retry(config: FailureConfig, failures: Sequence[AttemptFailure], without_progress: int) -> Retry | GiveUp:
    """The decision after the last of `failures`.

    `without_progress` counts the attempts in a row, the last one included, that ended
    without a new checkpoint. The first retry is immediate: most failures are not the
    program's own. What keeps failing at the same place is tried ever more slowly.
    """
    cause = failures[-1].root_cause
    if cause.kind in _NEVER_RETRIED:
        return GiveUp(f"a {cause.kind} failure is not retried")
    if config.max_failures >= 0 and len(failures) > config.max_failures:
        retries = config.max_failures
        return GiveUp("max_failures is 0" if retries == 0 else f"all {retries} retries are used up")
    limit = config.max_attempts_without_progress
    if limit is not None and without_progress >= limit:
        return GiveUp(f"{without_progress} attempts in a row made no progress")
    if without_progress <= 1:
        return Retry(0.0)
    return Retry(min(2.0 ** (without_progress - 2), _LONGEST_DELAY_S))


@dataclass
class ReachedSoFar:
    """What the attempts so far have come to; the result is made of it."""

    attempts: int = 0
    index: int = 0
    """The row at which the last attempt ended."""
    rank_metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    newest_before: KeptCheckpoint | None = None
    """The newest checkpoint when the last attempt started: another one is progress."""
    taken_over: tuple[int, Mapping[str, Any]] | None = None
    """Since which row another run's state has taken the place of this one's, and the row it came with."""
    is_changed: bool = False
    """The run continues by another spec than it began with."""
    failures: list[AttemptFailure] = field(default_factory=list)
    without_progress: int = 0
    """Failed attempts in a row that brought no new checkpoint."""

    def starts(self, keeper: CheckpointKeeper) -> None:
        """Another attempt begins."""
        keeper.attempt = self.attempts
        self.attempts += 1
        self.newest_before = keeper.newest

    def changed(self, change: Change, spec: RunSpec, parts: OpenRun) -> RunSpec:
        """Make a change between two attempts; the spec that holds from now on."""
        change.take_over(parts.keeper, self.index)
        if change.donor is not None:
            self.taken_over = (self.index, change.donor.row)
        if change.spec is None:
            return spec
        self.is_changed = True
        parts.task = pickled_task(change.spec, parts.data.packed, parts.data.preprocessor)
        return change.spec

    def failed(self, failures: Sequence[WorkerFailure], spec: RunSpec, parts: OpenRun) -> Retry | GiveUp:
        """Write a failed attempt down, and decide whether there is another one."""
        backend: type[Backend] = spec.backend_config.backend_cls
        self.failures.append(root_cause.attempt_failure(parts.keeper.attempt, failures, backend))
        made_progress = parts.keeper.newest is not self.newest_before
        self.without_progress = 1 if made_progress else self.without_progress + 1
        parts.write_down(_failure_record(self.failures[-1]))
        return decide_retry(spec.run_config.failure_config, self.failures, self.without_progress)

    @property
    def last_cause(self) -> str:
        """Of the last failure."""
        cause = self.failures[-1].root_cause
        return f"rank {cause.rank}: {cause.message}"


def _failure_record(failure: AttemptFailure) -> AttemptFailed:
    cause = failure.root_cause
    return AttemptFailed(
        attempt=failure.attempt, rank=cause.rank, cause=cause.kind, message=cause.message, traceback=cause.traceback
    )


def final_error(reached: ReachedSoFar, reason: str, spec: RunSpec, parts: OpenRun) -> TrainingFailedError:
    """What fit() raises when nothing is tried any more."""
    message = root_cause.describe(reached.failures, reason)
    if again := how_to_continue(spec, parts):  # the last line, where people look first
        message += f"\n\nTo continue: {again}"
    error = TrainingFailedError(message, failures=tuple(reached.failures))
    error.__cause__ = root_cause.cause_exception(reached.failures[-1].root_cause)
    return error


def how_to_continue(spec: RunSpec, parts: OpenRun) -> str:
    """Nothing to say of a trial, which its search continues, nor where everything was in memory only."""
    if spec.place is not None or parts.keeper.in_memory:
        return ""
    mirror = parts.files.mirror
    place = str(parts.files.run_dir.root) if mirror is None else mirror.filesystem.label
    return restore_line(spec.trainer_name, place, spec.again)


def read_back(reached: ReachedSoFar, parts: OpenRun) -> None:
    """The last row and metrics that survive, for an attempt that reported nothing itself."""
    parts.observers.last_row = parts.history.last_row()
    reached.rank_metrics = parts.history.last_rank_metrics()


def write_end(reached: ReachedSoFar, spec: RunSpec, parts: OpenRun, status: Status, error: Exception | None) -> Result:
    """Write the end down; what the run has come to."""
    parts.pass_on_warnings()
    parts.files.journal.flush()
    if 0 not in reached.rank_metrics:
        read_back(reached, parts)
    if (remark := parts.decider.remark(parts.observers.last_row or {})) is not None:
        parts.warn(remark)
    result = make_result(reached, spec, parts, status, error)
    if error is not None:
        text = str(error) if isinstance(error, TrainingFailedError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # for people to read; the journal has it, too
            write_durably(parts.files.run_dir.error_txt, text.encode("utf-8", "backslashreplace") + b"\n")
    parts.observers.write_out()
    parts.write_down(_end_record(reached, parts, result))
    return result


def _end_record(reached: ReachedSoFar, parts: OpenRun, result: Result) -> Ended:
    keeper, records = parts.keeper, parts.files.records
    if reached.failures:
        cause = _failure_record(reached.failures[-1]).in_words
    else:
        cause = records.last_cause if records else ""
    row = parts.observers.last_row or {}
    summary = Reached(
        iteration=number_in(row, TRAINING_ITERATION),
        time_total_s=float(number_in(row, TIME_TOTAL_S)),
        attempts=reached.attempts,
        metrics=reported(row),
        error=cause,
    )
    if keeper.committed and not keeper.in_memory:
        add_checkpoints(summary, keeper.committed, keeper.config)
    return Ended(status=result.status, message=str(result.error or ""), time=time.time(), reached=summary)


def result_without_storage(
    reached: ReachedSoFar, spec: RunSpec, parts: OpenRun, status: Status, error: Exception | None
) -> Result:
    """A full or deleted store may refuse even the end: the error still says what was reached."""
    with contextlib.suppress(OSError):  # rows that did not get into the journal are lost
        read_back(reached, parts)
        parts.observers.trial.last_result = parts.observers.last_row or {}
    return make_result(reached, spec, parts, status, error)


def make_result(
    reached: ReachedSoFar, spec: RunSpec, parts: OpenRun, status: Status, error: Exception | None
) -> Result:
    observers, keeper, files = parts.observers, parts.keeper, parts.files
    row = observers.last_row if observers.last_row is not None else observers.trial.last_result
    if reached.taken_over is not None and reached.taken_over[0] == reached.index:
        row = with_metrics_of(reached.taken_over[1], row, spec.config)
    result = Result(
        metrics={"config": dict(spec.config), **row, "done": True},  # also if no attempt came up
        checkpoint=keeper.newest_checkpoint(),
        error=error,
        log_dir=files.run_dir.root,
        path=files.mirror.filesystem.label if files.mirror is not None else "",
        filesystem=spec.run_config.storage_filesystem,
        best_checkpoints=keeper.best_checkpoints(),
        rank_metrics=dict(sorted(reached.rank_metrics.items())),
        warnings=list(observers.warnings),
        attempts=reached.attempts,
        status=status,
        how_to_continue="" if status == "finished" else how_to_continue(spec, parts),
        _history=parts.history,
    )
    if error is not None:
        vars(error)["result"] = result
    return result
