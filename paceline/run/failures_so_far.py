"""The failed attempts of a run: which cause each had, whether there is another one, and the error that ends the run."""

from __future__ import annotations

import time
from collections.abc import Sequence

from paceline.air.config import FailureConfig
from paceline.air.errors import AttemptFailure, TrainingFailedError, WorkerFailure
from paceline.run import root_cause
from paceline.run.attempt import Attempt
from paceline.run.backend import Backend
from paceline.run.failure_policy import GiveUp, Retry, decide
from paceline.run.records import AttemptFailed
from paceline.run.report_flow import Problem, ReportFlow
from paceline.storage.run_dir import RunDir


class FailuresSoFar:
    """Counts what the rules for retries go by."""

    def __init__(self, backend: type[Backend]) -> None:
        self._backend = backend
        self._failures: list[AttemptFailure] = []
        self._without_progress = 0

    def add(self, attempt: int, failures: Sequence[WorkerFailure], *, made_progress: bool) -> AttemptFailure:
        failure = root_cause.attempt_failure(attempt, failures, self._backend)
        self._failures.append(failure)
        self._without_progress = 1 if made_progress else self._without_progress + 1
        return failure

    @property
    def last_cause(self) -> str:
        """Why the last attempt failed; empty if none did."""
        return failure_record(self._failures[-1]).in_words if self._failures else ""

    def decide(self, config: FailureConfig) -> Retry | GiveUp:
        return decide(config, self._failures, self._without_progress)

    def final_error(self, reason: str, how_to_continue: str = "") -> TrainingFailedError:
        message = root_cause.describe(self._failures, reason)
        if how_to_continue:  # the last line, where people look first
            message += f"\n\nTo continue: {how_to_continue}"
        error = TrainingFailedError(message, failures=tuple(self._failures))
        error.__cause__ = root_cause.cause_exception(self._failures[-1].root_cause)
        return error


def failure_record(failure: AttemptFailure) -> AttemptFailed:
    """What the journal says about it."""
    cause = failure.root_cause
    return AttemptFailed(
        attempt=failure.attempt, rank=cause.rank, cause=cause.kind, message=cause.message, traceback=cause.traceback
    )


def failure_of(problem: Problem, run_dir: RunDir) -> WorkerFailure:
    """Something that the driver found, as a failure of the rank that it concerns."""
    return WorkerFailure(
        rank=problem.rank,
        kind=problem.kind,
        message=problem.message,
        time_ns=time.monotonic_ns(),
        traceback=problem.details,
        log_path=str(run_dir.log(problem.rank)),
    )


def closing_warnings(attempt: Attempt, flow: ReportFlow) -> list[str]:
    """What the user should know of an attempt that ended well."""
    warnings = [f"rank {each.rank} failed while stopping: {each.message}" for each in attempt.failures]
    if flow.alignment.only_rank_zero_reported:
        warnings.append("Only rank 0 called report(); its rows are the result.")
    if flow.alignment.lost_checkpoints:
        warnings.append(
            "Checkpoints were reported by other ranks but not by rank 0: only rank 0's are kept "
            "(CheckpointConfig(keep_all_ranks=True) keeps every rank's files)."
        )
    return warnings
