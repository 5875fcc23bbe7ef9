"""The validations of one run: which are wanted, which are at work, and what becomes of what they return.

A validation is wanted from the moment its request is in the journal, which is before its checkpoint is committed. It
begins when the checkpoint is there, in the order of the requests, by workers of its own (validator.py says how, and
validation_job.py is what happens then). What it returns is written down before anybody sees it; the checkpoint stays
until then. What is not done when the driver ends is done by the next one.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.air.background_pool import BackgroundPool
from paceline.air.config import FailureConfig
from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import RestoreError, WorkerFailure
from paceline.air.words import counted
from paceline.engine.base import Engine
from paceline.run import root_cause
from paceline.run.attempt import Attempt
from paceline.run.failure_policy import Retry, decide_retry
from paceline.run.phases import Phase
from paceline.run.records import TrainingEnded, Validated, ValidationFailed, ValidationRequested
from paceline.run.retention import pending_validations
from paceline.run.spec import RunSpec
from paceline.run.validation_job import LISTEN_EVERY_S, Outcome
from paceline.run.validator import Prepared, Validator, Wanted

if TYPE_CHECKING:
    from paceline.run.opening import OpenRun

END_WAIT_S = 5.0
"""How long the end of the run waits for validation workers that are being killed."""
MANY = 10
"""Checkpoints that wait for their validation before the user is told that they take room."""


class Validations:
    """What is to be validated, and what came of it. Use it from the thread of the run."""

    def __init__(self, spec: RunSpec, prepared: Prepared | None, engine: Engine, parts: OpenRun) -> None:
        self.failure: WorkerFailure | None = None
        """Of a validation that fails the run."""
        self._parts = parts
        self._validator = None if prepared is None else Validator(spec, prepared, engine, parts)
        self._backend = spec.backend_config.backend_cls
        self._engine = engine
        self._wanted: dict[int, Wanted] = {}
        """By the number of the checkpoint, in the order of the requests."""
        self._pool: BackgroundPool | None = None
        self._has_warned = False
        records = parts.files.records
        if records is None or parts.files.ended_as == "finished":
            return
        fails_run = prepared is not None and prepared.validation.config.fail_run
        for request in pending_validations(records, failed_again=fails_run).values():
            if parts.keeper.has(request.number):
                self._add(request)
        if self._wanted and self._validator is None:  # without them the run would end as if they had been made
            names = ", ".join(wanted.name for wanted in self._wanted.values())
            raise RestoreError(
                f"The run has checkpoints that are still to be validated: {names}. Pass validation_config= again: its "
                "function is not stored."
            )

    @property
    def unfinished(self) -> list[str]:
        """The checkpoints that are still to be validated. Asked when none is being committed."""
        keeper = self._parts.keeper
        return [wanted.name for number, wanted in self._wanted.items() if keeper.has(number)]

    @property
    def has_news(self) -> bool:
        """One of them is over, and nobody has looked at it."""
        return any(wanted.outcome is not None and wanted.outcome.done() for wanted in self._wanted.values())

    def ask(self, attempt: int, index: int, number: int, kwargs: dict[str, Any]) -> None:
        """Have a checkpoint validated that is about to be committed: the request is on disk before it."""
        request = ValidationRequested(attempt=attempt, index=index, number=number, time=time.time(), kwargs=kwargs)
        self._parts.files.journal.append(request, finite=False)
        self._add(request)
        if len(self._wanted) > MANY and not self._has_warned:
            self._has_warned = True
            self._parts.warn(
                f"{len(self._wanted)} checkpoints are waiting for validation and use disk space until then: "
                "validation is slower than training. Ask for it less often, or raise "
                "ValidationConfig(max_concurrent=...)."
            )

    def _add(self, request: ValidationRequested) -> None:
        self._wanted[request.number] = Wanted(request)
        self._parts.keeper.awaited.add(request.number)

    def forget_uncommitted(self) -> None:
        """An attempt is over: a checkpoint that was not committed by then never will be."""
        for number in [number for number in self._wanted if not self._parts.keeper.has(number)]:
            del self._wanted[number]
            self._parts.keeper.awaited.discard(number)

    def follow(self, phase: Phase, attempt: Attempt | None) -> None:
        """What the training does: it goes first wherever there is little room."""
        if self._validator is not None:
            self._validator.room.training = (phase, attempt)

    def look(self, phase: Phase, attempt: Attempt | None) -> bool:
        """Act on what has come of validations, and begin more of them. True if a checkpoint need not stay any more.

        Called at every step.
        """
        if not self._wanted or self._validator is None:
            return False
        self.follow(phase, attempt)
        over = [wanted for wanted in self._wanted.values() if wanted.outcome is not None and wanted.outcome.done()]
        for wanted in over:
            self._take(wanted)
        self._begin(self._validator)
        return bool(over)

    def _begin(self, validator: Validator) -> None:
        at_work = sum(wanted.outcome is not None for wanted in self._wanted.values())
        if at_work >= min(validator.most, len(self._wanted)) or not validator.has_place:
            return
        now = time.monotonic()
        for number, wanted in self._wanted.items():
            if wanted.outcome is None and now >= wanted.not_before and self._parts.keeper.has(number):
                if self._pool is None:
                    self._pool = BackgroundPool("paceline-validation", threads=validator.most)
                job = validator.job(wanted)
                wanted.outcome = self._pool.submit(job.run)
                wanted.outcome.add_done_callback(lambda _: self._engine.wake())
                at_work += 1
                if at_work >= validator.most:
                    return

    # -- what came of one -----------------------------------------------------------------

    def _take(self, wanted: Wanted) -> None:
        assert wanted.outcome is not None
        assert self._validator is not None
        outcome, wanted.outcome = _outcome_of(wanted.outcome), None
        for text in outcome.warnings:
            self._parts.warn(f"Validation of {wanted.name}: {text}")
        if outcome.returned is not None:
            self._succeeded(wanted, outcome)
        elif outcome.failures:
            self._failed(wanted, outcome)

    def _succeeded(self, wanted: Wanted, outcome: Outcome) -> None:
        assert outcome.returned is not None
        request, metrics = wanted.request, outcome.returned.metrics
        row = next((kept.row for kept in self._parts.keeper.committed if kept.number == request.number), {})
        counters = {key: row[key] for key in (TRAINING_ITERATION, "timesteps_total") if row.get(key) is not None}
        self._parts.write_down(
            Validated(
                attempt=request.attempt,
                index=request.index,
                number=request.number,
                time=time.time(),
                duration_s=outcome.duration_s,
                metrics=metrics,
                counters=counters,
            )
        )
        if self._forget(wanted, metrics):
            self._parts.observers.validated(request.index, wanted.name, metrics, counters)

    def _failed(self, wanted: Wanted, outcome: Outcome) -> None:
        assert self._validator is not None
        config, request = self._validator.config, wanted.request
        failure = root_cause.attempt_failure(request.attempt, outcome.failures, self._backend)
        wanted.failures.append(failure)
        cause = failure.root_cause
        said = f"The validation of {wanted.name} (iteration {request.index}) failed: rank {cause.rank}: {cause.message}"
        limits = FailureConfig(max_failures=config.max_failures, max_attempts_without_progress=None)
        decision = decide_retry(limits, wanted.failures)
        if isinstance(decision, Retry):
            wanted.not_before = time.monotonic() + decision.delay_s
            self._parts.warn(f"{said}. It is tried again.")
            return
        self._parts.write_down(
            ValidationFailed(
                attempt=request.attempt,
                index=request.index,
                number=request.number,
                time=time.time(),
                rank=cause.rank,
                cause=cause.kind,
                message=cause.message,
                traceback=cause.traceback,
            )
        )
        self._forget(wanted, None)
        where = f"\n{cause.log_path}" if cause.log_path else ""
        if config.fail_run:
            self.failure = replace(cause, message=f"the validation of {wanted.name} failed: {cause.message}")
        else:
            excerpt = "\n".join(root_cause.excerpt(cause.traceback, 20)) if cause.kind == "exception" else ""
            self._parts.warn("\n".join(filter(None, [f"{said}. Training is not affected.", excerpt])) + where)

    def _forget(self, wanted: Wanted, metrics: dict[str, Any] | None) -> bool:
        """It is over. False if the checkpoint is gone, or a later attempt has made another one of this number."""
        number = wanted.request.number
        if self._wanted.get(number) is not wanted:
            return False
        del self._wanted[number]
        is_kept = self._parts.keeper.has(number)
        self._parts.keeper.validated(number, metrics)
        return is_kept

    # -- the end --------------------------------------------------------------------------

    def outlast_training(self, attempt: int) -> bool:
        """The training has ended well. True if the run has to wait for validations."""
        if not self.unfinished or self._validator is None:
            return False
        self._parts.write_down(TrainingEnded(attempt=attempt, time=time.time()))
        names = ", ".join(self.unfinished)
        number = counted(len(self.unfinished), "validation")
        self._parts.observers.note(f"Training has ended. Waiting for {number}: {names}.")
        return True

    def wait(self, timeout: float) -> None:
        """Until one of them is over, or the time has passed."""
        outcomes = [wanted.outcome for wanted in self._wanted.values() if wanted.outcome is not None]
        if outcomes:
            wait(outcomes, timeout, FIRST_COMPLETED)
        else:  # one that failed is tried again soon
            time.sleep(min(timeout, LISTEN_EVERY_S))

    def close(self) -> None:
        """End those at work. They stay wanted: the next driver validates what this one did not."""
        if self._validator is not None:
            self._validator.cancelled.set()
        if self._pool is not None:
            self._pool.cancel()
            self._pool.close(END_WAIT_S)


def _outcome_of(done: Future[Outcome]) -> Outcome:
    """Whatever went wrong in the driver's own code fails the validation, and not the training."""
    try:
        return done.result()
    except Exception as error:
        failure = WorkerFailure(rank=0, kind="engine", message=f"{type(error).__name__}: {error}")
        return Outcome(failures=[failure])
