"""How one validation is made: what is prepared once, the room that it may take, and what its workers are told."""

from __future__ import annotations

import math
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
from paceline.run.phases import Phase
from paceline.run.records import ValidationRequested
from paceline.run.spec import RunSpec, ValidationSpec
from paceline.run.validation_job import Outcome, ValidationDir, ValidationJob
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
    devices: tuple[str, ...] | None = None
    """The GPUs that it uses meanwhile."""

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
        self.workers = self.config.scaling_config.max_workers or 1
        self.engine = engine
        self.training: tuple[Phase, Attempt | None] = (Phase.OPENED, None)
        """What the training does; its workers, while there are some."""
        self.cancelled = threading.Event()
        self._choosing = threading.Lock()
        self._prepared = prepared
        self._spec = spec
        self._parts = parts

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
            task=self._prepared.task,
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
        if self.training_is_over and not _are_at_work(others):
            return True  # if there is no room now, whoever starts the workers says so
        if self._training_starts or self._free_devices(others) == ():
            return False
        room = self.engine.room(self.config.scaling_config.on_nodes()[0])
        return room is None or room >= self.workers

    @property
    def _training_starts(self) -> bool:
        return self.training[0] in (Phase.OPENED, Phase.STARTING, Phase.LAUNCHING)

    def _is_unwanted(self) -> bool:
        return self.cancelled.is_set() or self._training_starts

    def _free_devices(self, others: list[Wanted]) -> tuple[str, ...] | None:
        """GPUs that nobody of this run uses, as many as are needed; none if they are too few. None: the engine chooses,
        or no GPU is asked for."""
        count = math.ceil(self.config.scaling_config.num_gpus_per_worker * self.workers)
        if not count or self.engine.capabilities.chooses_nodes:
            return None
        given = None if self._spec.devices is None else self._spec.devices()
        _, training = self.training
        used = {gpu for place in (training.places if training is not None else ()) for gpu in place.gpus or ()}
        used.update(gpu for other in others for gpu in other.devices or ())
        free = tuple(gpu for gpu in (self.engine.gpu_names() if given is None else given) if gpu not in used)
        return free[:count] if len(free) >= count else ()

    def _attempt(self, wanted: Wanted, directory: ValidationDir, others: list[Wanted]) -> Attempt:
        config, spec = self.config, self._spec
        with self._choosing:
            devices = wanted.devices = self._free_devices(others)
        owns_room = self.training_is_over and not _are_at_work(others)
        spec = replace(
            spec,
            scaling=config.scaling_config,
            ingest=self._prepared.validation.ingest or spec.ingest,  # the same modules are imported for both
            room=(),
            devices=None if not devices else lambda: devices,
            reservation=spec.reservation if owns_room else None,
            threads=max(1, int(config.scaling_config.num_cpus_per_worker)),
        )
        request = wanted.request
        start = StartPoint(index=request.index, checkpoint_number=request.number)
        return Attempt(request.attempt, spec, self.workers, self.engine, directory, start, None, self._is_unwanted)

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


def _are_at_work(others: list[Wanted]) -> bool:
    return any(other.outcome is not None and not other.outcome.done() for other in others)
