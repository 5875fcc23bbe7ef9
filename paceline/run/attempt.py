"""One life of a worker group within a run: how it is started, heard and ended."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.air import faults
from paceline.air.attachment import Attachment
from paceline.air.cells import with_cells
from paceline.air.constants import ORIGINAL_DIRECTORY_VARIABLE
from paceline.air.errors import ConfigError, WorkerFailure
from paceline.engine.base import Engine, Message, NodeDrains, Placement, TaskEnded, WorkerGroup, WorkerRequest
from paceline.engine.places import FAIR_SHARE, WorkerPlace
from paceline.engine.serialization import Pickled, pickled
from paceline.engine.usage import Usage
from paceline.run.history import node_ip
from paceline.run.messages import AnyFromWorker, SessionSetup, ToWorker, decode_from_worker, encode
from paceline.run.positions import KnownFrames
from paceline.run.records import AttemptStarted
from paceline.run.root_cause import is_echo
from paceline.run.settling import Settling
from paceline.run.sizing import PLACE_S
from paceline.run.spec import RunSpec
from paceline.run.worker import TrainTask
from paceline.storage.files import make_private_dirs
from paceline.storage.run_dir import RunDir

if TYPE_CHECKING:
    from paceline.data.ingest.prepared import Parcel
    from paceline.run.backend import Backend, BackendConfig


@dataclass(frozen=True)
class StartPoint:
    """The state of a run when an attempt starts."""

    index: int = 0
    """Iterations that are done."""
    time_s: float = 0.0
    """Training time that was spent on them."""
    checkpoint_number: int | None = None
    path: str | None = None
    uri: str | None = None
    in_memory: Attachment | None = None
    data: Mapping[str, Any] | None = None
    """Where the ranks were in their datasets."""


SetupOfGroup = Callable[[WorkerGroup], SessionSetup]
"""What the sessions are told depends on where the workers run, and on what they see from there."""


class Attempt:
    """The workers of one attempt. `start` is all or nothing; `stop` is always safe to call."""

    def __init__(
        self,
        number: int,
        spec: RunSpec,
        world_size: int,
        engine: Engine,
        run_dir: RunDir,
        start: StartPoint,
        notify: Callable[[str], None] | None = None,
        is_unwanted: Callable[[], bool] | None = None,
    ) -> None:
        """`notify` tells the user something while workers are being started; `is_unwanted` says that they need not."""
        self.number = number
        self.start_point = start
        self.world_size = world_size
        self.failures: list[WorkerFailure] = []
        self.ended: set[int] = set()
        """Ranks whose task has returned."""
        self.drains: NodeDrains | None = None
        """The first machine of the group that is about to be taken away."""
        self.places: tuple[WorkerPlace, ...] = ()
        """Where the workers run."""
        self._pids: dict[int, int] = {}
        """Rank to process id on its node."""
        self._warmup_s = 0.0
        """How long it took until the workers were at work."""
        self._spec = spec
        self._engine = engine
        self._run_dir = run_dir
        self._notify = notify
        self._is_unwanted = is_unwanted
        self._backend: Backend = spec.backend_config.backend_cls()
        self._group: WorkerGroup | None = None
        self._is_set_up = False
        """The backend has begun to change the workers, and has not put it back."""
        self._is_at_work = False
        self._settling = Settling(spec.run_config.failure_config.heartbeat_timeout_s)

    # -- starting -------------------------------------------------------------------------

    def start(self, task: Pickled, setup_of: SetupOfGroup) -> None:
        """Start the workers, connect them, install their sessions and start the train function.

        Raises ConfigError for what cannot be placed here, EngineError or WorkerError for
        workers that did not come up; nothing is left running then.
        """
        began = time.monotonic()
        try:
            self._group = group = self._engine.start_group(self._placement())
            self.places, self._pids = group.places, group.processes()
            config = self._spec.backend_config
            if self._backend.one_machine:
                _refuse_other_machines(type(config).__name__, group.places)
            setup = setup_of(group)
            self._is_set_up = True
            self._backend.on_start(group, config)
            self._backend.on_training_start(group, config)
            self._is_at_work = True
            arguments = [encode(self._for_rank(group, setup, place)) for place in group.places]
            group.start(task.content, arguments, task.attachments)
            self._hand_over_checkpoint(group)
            self._warmup_s = time.monotonic() - began
        except BaseException:
            self.stop(grace=0.0)
            raise

    def _placement(self) -> Placement:
        scaling, failure = self._spec.scaling, self._spec.run_config.failure_config
        defaults = self._backend.environment(self._spec.backend_config)
        variables = _original_directory()
        if ORIGINAL_DIRECTORY_VARIABLE not in os.environ:  # A node may have a copy of that directory, and say where.
            defaults, variables = {**variables, **defaults}, {}
        resources: Mapping[str, float] = {"CPU": scaling.num_cpus_per_worker, "GPU": scaling.num_gpus_per_worker}
        driver_resources: dict[str, float] = {}
        beside: list[Mapping[str, float]] = []
        if self._engine.capabilities.chooses_nodes:
            resources, driver_resources = scaling.on_nodes()
            if self._spec.room:
                resources, *beside = self._spec.room
        workers = []
        for rank in range(self.world_size):
            directory = self._run_dir.rank_dir(rank)
            if self._spec.working_dir is None:
                make_private_dirs(directory)
            workers.append(
                WorkerRequest(
                    rank=rank,
                    cwd=self._spec.working_dir or str(directory),
                    log_path=str(self._run_dir.log(rank)),
                    env={**variables, **faults.variables()},
                    defaults=defaults,
                )
            )
        return Placement(
            run_id=self._spec.identity.experiment_id,
            workers=tuple(workers),
            directory=str(self._directory()),
            resources=resources,
            beside=tuple(beside),
            devices=None if self._spec.devices is None else self._spec.devices(),
            reservation=None if self._spec.reservation is None else self._spec.reservation(),
            share_gpus=self._backend.share_cuda_visible_devices,
            hide_other_gpus=self._backend.hide_other_gpus,
            preload=modules_to_preload(self._spec.backend_config, with_data=self._spec.ingest is not None),
            fresh=self._backend.fresh,
            threads=self._spec.threads or FAIR_SHARE,
            thread_setters=self._backend.thread_setters,
            start_timeout_s=failure.start_timeout_s,
            resource_timeout_s=PLACE_S if scaling.is_elastic else failure.resource_timeout_s,
            heartbeat_timeout_s=failure.heartbeat_timeout_s,
            strategy=scaling.placement_strategy,
            accelerator_type=scaling.accelerator_type,
            driver_resources=driver_resources,
            notify=self._notify,
            is_unwanted=self._is_unwanted,
        )

    def _directory(self) -> Path:
        """What it is good for that workers see: one for all trials of a search, so that it is looked for once."""
        root = self._run_dir.root
        return root if self._spec.place is None else root.parent

    def _for_rank(self, group: WorkerGroup, setup: SessionSetup, place: WorkerPlace) -> SessionSetup:
        return msgspec.structs.replace(
            setup,
            world_rank=place.rank,
            world_size=self.world_size,
            local_rank=place.local_rank,
            local_world_size=place.local_world_size,
            node_rank=place.node_rank,
            wall_offset_s=group.wall_offset(place.rank),
        )

    def _hand_over_checkpoint(self, group: WorkerGroup) -> None:
        """The first message brings a checkpoint that is in memory."""
        if self.start_point.in_memory is not None:
            for rank in range(self.world_size):
                group.reply(rank, b"", [self.start_point.in_memory])

    def record(self) -> AttemptStarted:
        """What the journal says about the attempt; its rows are completed from it."""
        node = self.places[0].node
        return AttemptStarted(
            attempt=self.number,
            start_index=self.start_point.index,
            start_time_s=self.start_point.time_s,
            checkpoint=self.start_point.checkpoint_number,
            world_size=self.world_size,
            time=time.time(),
            warmup_time=self._warmup_s,
            hostname=node.hostname,
            node_ip=node_ip() if node.is_drivers else node.address,
            pid=self._pids.get(0, os.getpid()),
        )

    # -- running --------------------------------------------------------------------------

    def poll(self, timeout: float) -> Iterator[tuple[int, AnyFromWorker, tuple[Attachment, ...]]]:
        """What the ranks said; endings and failures are noted on the way."""
        assert self._group is not None
        for event in self._group.poll(timeout):
            if isinstance(event, Message):
                yield event.rank, decode_from_worker(event.body), event.attachments
            elif isinstance(event, TaskEnded):
                self.ended.add(event.rank)
            elif isinstance(event, NodeDrains):
                self.drains = self.drains or event
            else:
                self._note_failure(event.failure)

    @property
    def in_driver_process(self) -> bool:
        """Its ranks are threads of the driver, where any debugger may have stopped them."""
        return self._engine.capabilities.in_driver_process

    def reply(self, rank: int, message: ToWorker, attachments: tuple[Attachment, ...] = ()) -> None:
        assert self._group is not None
        self._group.reply(rank, encode(message), attachments)

    @property
    def group(self) -> WorkerGroup | None:
        """The workers while there are any."""
        return self._group

    def stacks(self) -> dict[int, str]:
        """Every live rank's Python stacks."""
        stacks = self._group.stacks() if self._group is not None else {}
        return {rank: with_cells(text) for rank, text in stacks.items()}

    def usage(self) -> dict[int, Usage]:
        """The processor time and memory of every live rank."""
        return self._group.usage() if self._group is not None else {}

    def _note_failure(self, failure: WorkerFailure) -> None:
        if failure.exception_type == "paceline.air.errors.StorageError":
            failure = replace(failure, kind="storage")
        self.failures.append(
            replace(failure, message=self._with_host(failure), log_path=str(self._run_dir.log(failure.rank)))
        )
        if is_echo(failure, backend=type(self._backend)):
            far = [rank for rank in self.running if not self.places[rank].node.is_drivers]
            self._settling.echo_heard(failure.rank, far, self.stacks)
        else:
            self._settling.cause_found()

    @property
    def known_frames(self) -> KnownFrames:
        """Where ranks wait for each other, as far as their stacks show it."""
        return KnownFrames(self._backend.collective_frames, self._backend.mixed_frames)

    @property
    def ranks_leave(self) -> bool:
        """Whoever waits for a rank that has returned gets an error."""
        return self._backend.ranks_leave or not (self._backend.collective_frames or self._backend.mixed_frames)

    @property
    def settled_at(self) -> float:
        """When the ranks have had time to say what they saw of a failure."""
        return self._settling.at(self.running) if self.failures else float("inf")

    def _with_host(self, failure: WorkerFailure) -> str:
        """The message; with the name of the machine, if that is not the driver's. Some say it already."""
        node = self.places[failure.rank].node if self.places else None
        if (
            node is None
            or node.is_drivers
            or (failure.kind in ("engine", "node_lost") and node.address in failure.message)
        ):
            return failure.message
        return f"{failure.message} (on {node.hostname}, {node.address})"

    @property
    def running(self) -> list[int]:
        gone = self.ended | {failure.rank for failure in self.failures}
        return [rank for rank in range(self.world_size) if rank not in gone]

    @property
    def is_running(self) -> bool:
        """Whether any rank still runs. Asked at every step, so the ranks are only counted."""
        if len(self.ended) >= self.world_size:
            return False
        return not self.failures or bool(self.running)

    @property
    def failed(self) -> bool:
        """True once a rank has failed and the others have had time to say what they saw of it."""
        return bool(self.failures) and (not self.is_running or time.monotonic() >= self.settled_at)

    # -- ending ---------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """End workers whose tasks have all returned; gives warnings."""
        assert self._group is not None
        return [*self._shut_down_backend(self._group), *self.stop(grace=5.0)]

    def _shut_down_backend(self, group: WorkerGroup) -> list[str]:
        self._is_set_up = False
        try:
            self._backend.on_shutdown(group, self._spec.backend_config)
        except Exception as error:  # best effort: the training itself is over
            return [f"the backend did not shut down cleanly: {error}"]
        return []

    def stop(self, grace: float = 0.0) -> list[str]:
        """End every worker and everything it started."""
        if self._group is None:
            return []
        try:
            warnings = []
            is_idle = not (self._is_at_work and self.is_running)
            if self._is_set_up and is_idle and self._engine.capabilities.in_driver_process:
                # What was changed for a worker in this very process does not go away with it.
                warnings = self._shut_down_backend(self._group)
            return [*warnings, *self._group.shutdown(grace)]
        except BaseException:  # interrupted while workers were given time to end
            self._group.shutdown(0.0)
            raise
        finally:
            self._group = None
            self._backend.on_end()


def _refuse_other_machines(backend: str, places: Sequence[WorkerPlace]) -> None:
    """Workers that look for each other at the loopback address would wait in vain."""
    elsewhere = sorted({place.node.hostname for place in places if not place.node.is_drivers})
    if elsewhere:
        raise ConfigError(
            f"{backend} connects workers on the driver's machine only, and the engine has put some on "
            f"{', '.join(elsewhere)}. Use RunConfig(engine='local'), or a trainer that is built on PyTorch."
        )


def all_here(group: WorkerGroup) -> bool:
    """Whether all workers are on the driver's machine."""
    return all(place.node.is_drivers for place in group.places)


def is_seen(path: str, group: WorkerGroup) -> bool:
    """Whether the workers see a checkpoint on the driver's disk."""
    is_below = Path(group.placement.directory) in Path(os.path.abspath(path)).parents
    return group.shares_directory and (is_below or all_here(group))


def _original_directory() -> dict[str, str]:
    """The directory that the driver was started in, which may be gone."""
    with contextlib.suppress(FileNotFoundError):
        return {ORIGINAL_DIRECTORY_VARIABLE: os.getcwd()}
    return {}


def modules_to_preload(config: BackendConfig, *, with_data: bool = False) -> tuple[str, ...]:
    """What every worker of such a run will import: loaded once, then forked with it."""
    names = (
        "paceline.data.iterator",
        "paceline.data.ingest.prepared",
        "paceline.data.torch_batches",
        "pyarrow.parquet",
    )
    data = names if with_data else ()
    return (*config.backend_cls.preload, *data, "paceline.run.worker", "paceline.air.checkpoint", "cloudpickle")


def pickled_task(spec: RunSpec, datasets: Parcel | None = None, preprocessor: Any = None) -> Pickled:
    """The train function ready to travel; refused here, before any worker starts, if it cannot."""
    return pickled(TrainTask(spec.train, datasets, preprocessor), spec.trainer_name)
