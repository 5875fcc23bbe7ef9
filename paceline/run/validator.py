"""How one validation is made: what is prepared once, and what its workers are told."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.air.errors import AttemptFailure
from paceline.engine.base import Engine, WorkerGroup
from paceline.engine.serialization import Pickled, pickled
from paceline.run.attempt import Attempt, StartPoint, is_seen
from paceline.run.backend import check_threads
from paceline.run.data import RunData
from paceline.run.messages import SessionSetup, TrialResources
from paceline.run.records import ValidationRequested
from paceline.run.spec import RunSpec, ValidationSpec
from paceline.run.validation_job import Outcome, ValidationDir, ValidationJob
from paceline.run.validation_room import Place, ValidationRoom
from paceline.run.validation_worker import ValidationWork

if TYPE_CHECKING:
    from paceline.run.opening import OpenRun


@dataclass(eq=False)
class Wanted:
    """A validation that is not over."""

    request: ValidationRequested
    failures: list[AttemptFailure] = field(default_factory=list)
    not_before: float = 0.0
    outcome: Future[Outcome] | None = None
    """While it is at work, or waits for room."""

    @property
    def name(self) -> str:
        return f"checkpoint_{self.request.number:06d}"


@dataclass
class Prepared:
    """What validations need that can be made before there are files: what cannot work is refused here."""

    validation: ValidationSpec
    data: RunData
    task: Pickled

    @classmethod
    def of(cls, spec: RunSpec, engine: Engine, preprocessor: Any) -> Prepared | None:
        """With the preprocessor as the training has fitted it; None if checkpoints are not validated."""
        validation = spec.validation
        if validation is None:
            return None
        workers = validation.config.scaling_config.max_workers or 1
        check_threads(spec.backend_config.backend_cls, workers, engine)
        spec.backend_config.check(validation.config.scaling_config)
        data = RunData()
        if validation.ingest is not None:
            data = RunData.prepared(replace(validation.ingest, preprocessor=preprocessor), workers)
        work = ValidationWork(validation.config.fn, data.packed, preprocessor)
        return cls(validation, data, pickled(work, spec.trainer_name))


class Validator:
    """What all validations of a run have in common: how one of them is made."""

    def __init__(self, spec: RunSpec, prepared: Prepared, engine: Engine, parts: OpenRun) -> None:
        self.config = prepared.validation.config
        self.engine = engine
        self.room = ValidationRoom(spec, self.config.scaling_config, engine)
        self.cancelled = threading.Event()
        self._prepared = prepared
        self._spec = spec
        self._parts = parts

    @property
    def most(self) -> int:
        """Of validations at a time."""
        return 1 if self.engine.capabilities.in_driver_process else self.config.max_concurrent

    @property
    def has_place(self) -> bool:
        """Whether there can be workers beside those of the training: not in threads of the driver's own process."""
        return self.room.training_is_over or not self.engine.capabilities.in_driver_process

    def job(self, wanted: Wanted) -> ValidationJob:
        """One that may run in another thread."""
        number = wanted.request.number
        directory = ValidationDir(self._parts.files.run_dir.root, number)
        return ValidationJob(
            room=self.room,
            place=self.room.wait(),
            make_attempt=partial(self._attempt, wanted.request, directory),
            task=self._prepared.task,
            setup_of=partial(self._setup, wanted.request),
            directory=directory,
            checkpoint=directory.checkpoint(number),
            cancelled=self.cancelled,
            timeout_s=self.config.timeout_s,
            max_log_bytes=self._spec.run_config.max_log_bytes,
        )

    # -- in the thread of a validation ----------------------------------------------------

    def _is_unwanted(self) -> bool:
        return self.cancelled.is_set() or self.room.training_needs_room

    def _attempt(self, request: ValidationRequested, directory: ValidationDir, place: Place) -> Attempt:
        config, spec, devices = self.config, self._spec, place.devices
        spec = replace(
            spec,
            scaling=config.scaling_config,
            ingest=self._prepared.validation.ingest or spec.ingest,  # the same modules are imported for both
            room=(),
            devices=None if not devices else lambda: devices,
            reservation=spec.reservation if place.has_training_room else None,
            threads=max(1, int(config.scaling_config.num_cpus_per_worker)),
        )
        start = StartPoint(index=request.index, checkpoint_number=request.number)
        return Attempt(request.attempt, spec, self.room.workers, self.engine, directory, start, None, self._is_unwanted)

    def _setup(self, request: ValidationRequested, group: WorkerGroup) -> SessionSetup:
        self._prepared.data.check_seen(group)
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
