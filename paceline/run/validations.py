"""The validations of one run: which are wanted, which are at work, and what becomes of what they return.

A validation is wanted from the moment its request is in the journal, which is before its checkpoint is committed. It
begins when the checkpoint is there, in the order of the requests, by workers of its own (validation_job.py). What it
returns is written down before anybody sees it; the checkpoint stays until then. What is not done when the driver ends
is done by the next one.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.air.background_pool import BackgroundPool
from paceline.air.config import FailureConfig
from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import AttemptFailure, WorkerFailure
from paceline.air.words import counted
from paceline.engine.base import Engine, WorkerGroup
from paceline.engine.serialization import Pickled, pickled
from paceline.run import root_cause
from paceline.run.attempt import Attempt, StartPoint, is_seen
from paceline.run.backend import check_threads
from paceline.run.data import RunData
from paceline.run.failure_policy import Retry, decide_retry
from paceline.run.messages import SessionSetup, TrialResources
from paceline.run.phases import Phase
from paceline.run.records import TrainingEnded, Validated, ValidationFailed, ValidationRequested
from paceline.run.retention import pending_validations
from paceline.run.spec import RunSpec, ValidationSpec
from paceline.run.validation_job import LISTEN_EVERY_S, Outcome, ValidationDir, ValidationJob
from paceline.run.validation_worker import ValidationWork

if TYPE_CHECKING:
    from paceline.run.opening import OpenRun

END_WAIT_S = 5.0
"""How long the end of the run waits for validation workers that are being killed."""
MANY = 10
"""Checkpoints that wait for their validation before the user is told that they take room."""


@dataclass(eq=False)
class Wanted:
    """A validation that is not over."""

    request: ValidationRequested
    failures: list[AttemptFailure] = field(default_factory=list)
    not_before: float = 0.0
    outcome: Future[Outcome] | None = None
    """While it is at work, or waits for room."""
    attempt: Attempt | None = None

    @property
    def name(self) -> str:
        return f"checkpoint_{self.request.number:06d}"


class Validator:
    """What all validations of a run have in common: how one of them is made."""

    def __init__(self, spec: RunSpec, validation: ValidationSpec, engine: Engine, parts: OpenRun) -> None:
        config = validation.config
        self.config = config
        self.workers = config.scaling_config.max_workers or 1
        self.engine = engine
        self.training: tuple[Phase, Attempt | None] = (Phase.OPENED, None)
        """What the training does; its workers, while there are some."""
        self.cancelled = threading.Event()
        check_threads(spec.backend_config.backend_cls, self.workers, engine)
        spec.backend_config.check(config.scaling_config)
        data = parts.data.preprocessor
        self._data = (
            RunData()
            if validation.ingest is None
            else RunData.prepared(replace(validation.ingest, preprocessor=data), self.workers)
        )
        work = ValidationWork(config.fn, self._data.packed, data)
        self._task: Pickled = pickled(work, spec.trainer_name)
        self._spec = spec
        self._ingest = validation.ingest
        self._parts = parts
        self._has_lent = False
        """The room that the training had is used by a validation."""

    @property
    def most(self) -> int:
        """Of validations at a time."""
        return 1 if self.engine.capabilities.in_driver_process else self.config.max_concurrent

    @property
    def training_is_over(self) -> bool:
        return self.training[0] is Phase.VALIDATING

    @property
    def has_place(self) -> bool:
        """Whether there can be workers beside those of the training: not in threads of the driver's own process."""
        return self.training_is_over or not self.engine.capabilities.in_driver_process

    def job(self, wanted: Wanted, others: list[Wanted]) -> ValidationJob:
        """One that may run in another thread."""
        number = wanted.request.number
        directory = ValidationDir(self._parts.files.run_dir.root, number)
        return ValidationJob(
            make_attempt=partial(self._attempt, wanted, directory, others),
            task=self._task,
            setup_of=partial(self._setup, wanted.request),
            directory=directory,
            checkpoint=directory.checkpoint(number),
            may_begin=partial(self._may_begin, others),
            cancelled=self.cancelled,
            timeout_s=self.config.timeout_s,
            max_log_bytes=self._spec.run_config.max_log_bytes,
        )

    # -- in the thread of a validation ----------------------------------------------------

    def _may_begin(self, others: list[Wanted]) -> bool:
        """Training goes first: a validation takes room that is left over, or waits until the training is over."""
        if self.training_is_over:
            return True
        if self._training_starts:
            return False
        room = self.engine.room(self.config.scaling_config.on_nodes()[0])
        return (room is None or room >= self.workers) and self._devices(others) != ()

    @property
    def _training_starts(self) -> bool:
        return self.training[0] in (Phase.OPENED, Phase.STARTING, Phase.LAUNCHING)

    def _is_unwanted(self) -> bool:
        return self.cancelled.is_set() or self._training_starts

    def _devices(self, others: list[Wanted]) -> tuple[str, ...] | None:
        """The GPUs that nobody uses; none at all if they are too few, and None if no GPU is asked for here."""
        share = self.config.scaling_config.num_gpus_per_worker
        if not share or self.engine.capabilities.chooses_nodes:
            return None
        given = None if self._spec.devices is None else self._spec.devices()
        _, training = self.training
        at_work = [training, *(other.attempt for other in others)]
        places = [place for attempt in at_work if attempt is not None for place in attempt.places]
        used = {gpu for place in places for gpu in place.gpus or ()}
        free = tuple(gpu for gpu in (self.engine.gpu_names() if given is None else given) if gpu not in used)
        return free if len(free) >= share * self.workers else ()

    def _attempt(self, wanted: Wanted, directory: ValidationDir, others: list[Wanted]) -> Attempt:
        config, spec = self.config, self._spec
        devices = self._devices(others)
        spec = replace(
            spec,
            scaling=config.scaling_config,
            ingest=self._ingest or spec.ingest,  # the same modules are imported for both
            room=(),
            devices=None if devices is None else lambda: devices,
            reservation=spec.reservation if self.training_is_over and not others else None,
            threads=max(1, int(config.scaling_config.num_cpus_per_worker)),
        )
        start = StartPoint(index=wanted.request.index, checkpoint_number=wanted.request.number)
        attempt = Attempt(
            wanted.request.attempt, spec, self.workers, self.engine, directory, start, None, self._is_unwanted
        )
        wanted.attempt = attempt
        return attempt

    def _setup(self, request: ValidationRequested, group: WorkerGroup) -> SessionSetup:
        self._data.check_seen(group)
        parts, trial = self._parts, self._parts.observers.trial
        factory = self.config.scaling_config.as_placement_group_factory()
        path, uri = self._checkpoint(request.number, group)
        return SessionSetup(
            trial_name=str(trial),
            trial_id=trial.trial_id,
            trial_dir=os.fsencode(trial.local_path if group.shares_directory else os.path.basename(trial.local_path)),
            experiment_name=trial.experiment_name,
            resources=TrialResources.of(factory.bundles, factory.strategy),
            metadata=dict(self._spec.metadata),
            attempt=request.attempt,
            start_index=request.index,
            next_number=parts.keeper.next_number,
            decides=False,
            resume_path=None if path is None else os.fsencode(path),
            resume_uri=uri,
            resume_relayed=path is None and uri is None,
            validation_kwargs=request.kwargs,
            gives_way=not self.engine.capabilities.in_driver_process,
        )

    def _checkpoint(self, number: int, group: WorkerGroup) -> tuple[str | None, str | None]:
        """Its path or URI as the workers see it; neither if they have to ask for its files."""
        path, mirror = self._parts.files.run_dir.checkpoint(number), self._parts.files.mirror
        if mirror is not None and not path.exists():
            if mirror.filesystem.given is None:
                return None, f"{mirror.filesystem.uri}/{path.name}"
            mirror.pull_checkpoint(number, path)
        return (str(path), None) if is_seen(str(path), group) else (None, None)


class Validations:
    """What is to be validated, and what came of it. Use it from the thread of the run."""

    def __init__(self, spec: RunSpec, engine: Engine, parts: OpenRun) -> None:
        self.failure: WorkerFailure | None = None
        """Of a validation that fails the run."""
        self._parts = parts
        self._validator = None if spec.validation is None else Validator(spec, spec.validation, engine, parts)
        self._backend = spec.backend_config.backend_cls
        self._engine = engine
        self._wanted: dict[int, Wanted] = {}
        """By the number of the checkpoint, in the order of the requests."""
        self._pool: BackgroundPool | None = None
        self._has_warned = False
        records = parts.files.records
        for request in pending_validations(records or ()).values():
            if parts.keeper.has(request.number):
                self._add(request)
        if self._wanted and self._validator is None:
            names = ", ".join(wanted.name for wanted in self._wanted.values())
            parts.keeper.warnings.append(f"Validations of {names} are pending: pass validation_config= to restore().")

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
        self._parts.files.journal.append(request)
        self._add(request)
        if len(self._wanted) > MANY and not self._has_warned:
            self._has_warned = True
            self._parts.warn(
                f"{len(self._wanted)} checkpoints wait for their validation, and take room until it is done: "
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

    def look(self, phase: Phase, attempt: Attempt | None) -> bool:
        """Act on what has come of validations, and begin more of them. True if a checkpoint need not stay any more.

        Called at every step.
        """
        if not self._wanted or self._validator is None:
            return False
        self._validator.training = (phase, attempt)
        over = [wanted for wanted in self._wanted.values() if wanted.outcome is not None and wanted.outcome.done()]
        for wanted in over:
            self._take(wanted)
        self._begin(self._validator)
        return bool(over)

    def _begin(self, validator: Validator) -> None:
        at_work = [wanted for wanted in self._wanted.values() if wanted.outcome is not None]
        if len(at_work) >= min(validator.most, len(self._wanted)) or not validator.has_place:
            return
        now = time.monotonic()
        for number, wanted in self._wanted.items():
            if wanted.outcome is None and now >= wanted.not_before and self._parts.keeper.has(number):
                if self._pool is None:
                    self._pool = BackgroundPool("paceline-validation", threads=validator.most)
                job = validator.job(wanted, list(at_work))
                wanted.outcome = self._pool.submit(job.run)
                wanted.outcome.add_done_callback(lambda _: self._engine.wake())
                at_work.append(wanted)
                if len(at_work) >= validator.most:
                    return

    # -- what came of one -----------------------------------------------------------------

    def _take(self, wanted: Wanted) -> None:
        assert wanted.outcome is not None
        assert self._validator is not None
        outcome, wanted.outcome, wanted.attempt = _outcome_of(wanted.outcome), None, None
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
        self._write_down(
            Validated(
                attempt=request.attempt,
                index=request.index,
                number=request.number,
                time=time.time(),
                duration_s=outcome.duration_s,
                metrics=metrics,
                counters={key: row[key] for key in (TRAINING_ITERATION, "timesteps_total") if row.get(key) is not None},
            )
        )
        if self._forget(wanted, metrics):
            self._parts.observers.validated(request.index, wanted.name, metrics)

    def _failed(self, wanted: Wanted, outcome: Outcome) -> None:
        assert self._validator is not None
        config, request = self._validator.config, wanted.request
        failure = root_cause.attempt_failure(request.attempt, outcome.failures, self._backend)
        wanted.failures.append(failure)
        cause = failure.root_cause
        said = f"The validation of {wanted.name} (iteration {request.index}) failed: rank {cause.rank}: {cause.message}"
        decision = decide_retry(FailureConfig(max_failures=config.max_failures), wanted.failures)
        if isinstance(decision, Retry):
            wanted.not_before = time.monotonic() + decision.delay_s
            self._parts.warn(f"{said}. It is tried again.")
            return
        self._write_down(
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

    def _write_down(self, record: Validated | ValidationFailed) -> None:
        self._parts.write_down(record)

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
