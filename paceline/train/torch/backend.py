"""TorchBackend: connects the workers of a run in a PyTorch process group."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.checks import check_seconds, names_what_was_meant
from paceline.air.errors import ConfigError
from paceline.engine.places import LOOPBACK
from paceline.run.backend import Backend, BackendConfig, WorkerState
from paceline.train.imports import FOR_TORCH_TRAINING
from paceline.train.network import (
    addresses_of,
    free_port,
    interface_for,
    listening_socket,
    loopback_interface,
    on_one_machine,
)
from paceline.train.torch.devices import VISIBLE, WorkerGpus, assign_gpus, plan_gpus
from paceline.train.torch.leaving import COLLECTIVE_FRAMES, MIXED_FRAMES, GlooSockets

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from paceline.air.config import ScalingConfig
    from paceline.air.errors import WorkerFailure
    from paceline.engine.base import WorkerGroup

_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl")
_NEED_GPUS = ("nccl", "cuda:nccl")
_INIT_METHODS = ("env", "tcp")


@names_what_was_meant()
@dataclass
class TorchConfig(BackendConfig):
    """How the workers of a TorchTrainer are connected."""

    backend: str | None = None
    """"gloo", "nccl", ... or a mix such as "cpu:gloo,cuda:nccl"; None takes nccl with GPUs and gloo without."""
    init_method: str = "env"
    """"env" meets in memory and opens no port; "tcp" meets at a store that rank 0 hosts on the loopback address. On
    several machines, both meet at a store that rank 0 hosts at the address of its machine. MASTER_ADDR and MASTER_PORT
    are set in any case, for groups that the train function makes itself."""
    timeout_s: float = 1800
    """How long a collective operation may take before it fails."""

    def __post_init__(self) -> None:
        if self.backend is not None:
            _check_backend(self.backend)
        if self.init_method not in _INIT_METHODS:
            raise ConfigError(f"TorchConfig(init_method={self.init_method!r}): choose 'env' or 'tcp'.")
        check_seconds(self.timeout_s, "TorchConfig(timeout_s)")

    def check(self, scaling: ScalingConfig) -> None:
        if self.backend in _NEED_GPUS and not scaling.num_gpus_per_worker:
            raise ConfigError(
                f"TorchConfig(backend={self.backend!r}) connects GPUs, but the workers have none: ask for them with "
                "ScalingConfig(use_gpu=True), or leave backend out, which takes gloo without GPUs."
            )

    @property
    def backend_cls(self) -> type[TorchBackend]:
        return TorchBackend


def _check_backend(backend: str) -> None:
    """Refuse a misspelt backend here: in a worker it would only fail after the start."""
    parts = backend.split(",") if isinstance(backend, str) else []
    names = [part.rpartition(":")[2] for part in parts]
    if not names or any(name not in _BACKENDS for name in names):
        raise ConfigError(
            f"TorchConfig(backend={backend!r}): choose one of {', '.join(map(repr, _BACKENDS))}, a mix such as "
            "'cpu:gloo,cuda:nccl', or None to let the devices decide."
        )


_LEAVE_TIMEOUT_S = 5.0


class TorchBackend(Backend):
    """Every attempt gets a fresh store: keys of an earlier one would make gloo fail or hang.

    On the driver's machine the ranks meet in a memory file that the driver makes and they open: no port, no file
    name, nothing left behind whoever dies. Where that is not possible, rank 0 hosts the
    store on a socket that is bound before the others try to connect.
    """

    joins_uneven: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = (
        *FOR_TORCH_TRAINING,
        "torch.distributed",
        "paceline.train.torch.data_loader",
        "paceline.train.torch.accelerator",
    )
    thread_setters: ClassVar[tuple[str, ...]] = ("torch:set_num_threads",)
    collateral_phrases: ClassVar[tuple[str, ...]] = ("gloo/transport", "nccl communicator was aborted")
    collective_frames: ClassVar[tuple[str, ...]] = COLLECTIVE_FRAMES
    mixed_frames: ClassVar[tuple[str, ...]] = MIXED_FRAMES

    @classmethod
    def hint_for(cls, failure: WorkerFailure) -> str:
        if "A DataLoader asks for rows by number" in failure.message:
            return (
                "If the batches are a dataset of a transformers.Trainer, call prepare_trainer(trainer) of "
                "paceline.train.huggingface.transformers before trainer.train()."
            )
        return ""

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, TorchConfig)
        placement = worker_group.placement
        gpus = plan_gpus(worker_group.places)
        if not all(place.node.is_drivers for place in worker_group.places):
            self._meet_over_network(worker_group, gpus)
        elif placement.world_size == 1:
            _enter(worker_group, _here(worker_group, free_port(LOOPBACK)), gpus, None)
        elif backend_config.init_method == "tcp" or not self._meet_in_memory(worker_group, gpus):
            port = worker_group.execute_single(0, listen, LOOPBACK)
            _enter(worker_group, _here(worker_group, port), gpus, None)
        backend = backend_config.backend or ("nccl" if all(gpus) else "gloo")
        self.ranks_leave = backend == "gloo"
        worker_group.execute(join, backend, backend_config.timeout_s, timeout=placement.start_timeout_s)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(leave, timeout=_LEAVE_TIMEOUT_S)

    def _meet_in_memory(self, worker_group: WorkerGroup, gpus: list[WorkerGpus | None]) -> bool:
        """Let every rank open one new memory file; False if it cannot be reached from all of them."""
        if not hasattr(os, "memfd_create"):
            return False
        descriptor = os.memfd_create("paceline-store")
        try:
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
            return _enter(worker_group, _here(worker_group, free_port(LOOPBACK)), gpus, path)
        finally:
            os.close(descriptor)

    def _meet_over_network(self, worker_group: WorkerGroup, gpus: list[WorkerGpus | None]) -> None:
        """Let rank 0 host the store, where the others reach it."""
        addresses = addresses_of(worker_group.places)
        find_port = free_port if worker_group.world_size == 1 else listen
        port = worker_group.execute_single(0, find_port, addresses[0])
        peers = sorted(set(addresses))
        interfaces = worker_group.execute_each(interface_for, [(address, peers) for address in addresses])
        for_nccl = not on_one_machine(worker_group.places)
        _enter(worker_group, MeetingPoint(addresses[0], port, interfaces, for_nccl), gpus, None)


@dataclasses.dataclass(frozen=True)
class MeetingPoint:
    """Where the ranks find each other."""

    address: str
    port: int
    interfaces: Sequence[str | None]
    """Each rank's own, for Gloo: it would take the address that the name of the machine resolves to."""
    for_nccl: bool = False
    """NCCL shall use them too: it would take the first that looks usable. On one machine it finds better ways."""


def _here(worker_group: WorkerGroup, port: int) -> MeetingPoint:
    """On this machine, which nobody else can reach."""
    return MeetingPoint(LOOPBACK, port, [loopback_interface()] * worker_group.world_size)


def _enter(
    worker_group: WorkerGroup, meeting: MeetingPoint, gpus: list[WorkerGpus | None], store_path: str | None
) -> bool:
    """Prepare each rank with its own values; True if all of them could open the store."""
    opened = [
        worker_group.execute_single(rank, enter, environment, own.own if own else (), store_path)
        for rank, (environment, own) in enumerate(
            zip(_environments(worker_group, meeting, gpus), gpus, strict=True),
        )
    ]
    return all(opened)


def _environments(
    worker_group: WorkerGroup, meeting: MeetingPoint, gpus: list[WorkerGpus | None]
) -> Iterator[dict[str, str]]:
    """Every rank's variables: those of torchrun, and the device for libraries that read it from there."""
    for place, own, interface in zip(worker_group.places, gpus, meeting.interfaces, strict=True):
        environment = {
            "MASTER_ADDR": meeting.address,
            "MASTER_PORT": str(meeting.port),
            "RANK": str(place.rank),
            "LOCAL_RANK": str(place.local_rank),
            "WORLD_SIZE": str(worker_group.world_size),
            "LOCAL_WORLD_SIZE": str(place.local_world_size),
            "NODE_RANK": str(place.node_rank),
            "ACCELERATE_TORCH_DEVICE": f"cuda:{own.own[0]}" if own else "cpu",
            # Without it Accelerate takes a worker without a GPU for a process on its own, which trains alone.
            "ACCELERATE_USE_CPU": str(own is None).lower(),
        }
        if own:
            environment[VISIBLE] = own.visible
        if interface is not None:
            environment[INTERFACE_VARIABLE] = interface
            if meeting.for_nccl:
                environment[NCCL_INTERFACE_VARIABLE] = f"={interface}"  # The sign asks for exactly this name.
        yield environment


# -- in a worker -----------------------------------------------------------------------------------
# The driver imports this module too, so torch is only imported inside of these functions.


INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
NCCL_INTERFACE_VARIABLE = "NCCL_SOCKET_IFNAME"


@dataclass
class ProcessGroupMember(WorkerState):
    """This worker's part in the group."""

    store_file: int | None = None
    """This worker's own descriptor of the memory file in which the ranks meet. It stays open for the life of the
    process: the store uses the number even when it is destroyed, and would then write into another file."""
    listener: socket.socket | None = None
    """On rank 0: the bound socket on which it will host the store."""
    group: Any = None
    """The default group. A train function may call destroy_process_group() while its model still
    uses the group; dropping the last reference there joins a thread that waits for the
    interpreter lock, and hangs. This reference outlives the train function."""
    sockets: GlooSockets = field(default_factory=GlooSockets)

    def leave_peers(self) -> None:
        self.sockets.shut_down()


def listen(address: str) -> int:
    """On rank 0: bind the port of the store before anyone connects to it; returns its number."""
    ProcessGroupMember.here().listener = listener = listening_socket(address)
    return int(listener.getsockname()[1])


def enter(environment: Mapping[str, str], own_gpus: tuple[int, ...], store_path: str | None) -> bool:
    """Set this rank's variables and open the memory file; False if the file cannot be opened."""
    names = (INTERFACE_VARIABLE, NCCL_INTERFACE_VARIABLE)
    chosen = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update({**environment, **chosen})  # The user knows better.
    assign_gpus(tuple(own_gpus))
    member = ProcessGroupMember.here()
    if store_path is None:
        member.store_file = None
        return True
    try:
        member.store_file = os.open(store_path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    return True


def join(backend: str, timeout_s: float) -> None:
    """Make the default process group, together with all other ranks."""
    import torch
    import torch.distributed as dist

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = os.environ["ACCELERATE_TORCH_DEVICE"]
    if device != "cpu":
        torch.cuda.set_device(torch.device(device))
    timeout = timedelta(seconds=timeout_s)
    member = ProcessGroupMember.here()
    if member.group is not None and dist.is_initialized() and dist.group.WORLD is member.group:
        # A failed run in this same process did not get to leave its group.
        dist.destroy_process_group()
    if world_size > 1:
        member.sockets.watch(dist.distributed_c10d)
    dist.init_process_group(
        backend, store=_store(member, world_size, timeout), rank=rank, world_size=world_size, timeout=timeout
    )
    member.group = dist.group.WORLD


def _store(member: ProcessGroupMember, world_size: int, timeout: timedelta) -> Store:
    from torch._C._distributed_c10d import FileStore, HashStore, TCPStore

    if world_size == 1:
        return HashStore()
    if member.store_file is not None:
        # The store opens its path again for every operation; this one stays valid while the
        # descriptor is open, needs no name in a file system and is gone with the last worker.
        return FileStore(f"/proc/self/fd/{member.store_file}", world_size)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if member.listener is None:
        return TCPStore(address, port, world_size, is_master=False, timeout=timeout)
    descriptor = member.listener.detach()  # the store's from here on
    member.listener = None
    return TCPStore(
        address,
        port,
        world_size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


def leave() -> None:
    """Leave the group, unless the train function already did."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    assign_gpus(())
