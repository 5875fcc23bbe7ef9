"""HorovodBackend: tells the workers of a run where they meet; `hvd.init()` in the train function connects them."""

from __future__ import annotations

import functools
import ipaddress
import math
import os
import re
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.checks import check_seconds, names_what_was_meant, whole_number
from paceline.air.errors import ConfigError
from paceline.run.backend import Backend, BackendConfig, WorkerState
from paceline.train.imports import FOR_TORCH_TRAINING, AfterImport
from paceline.train.network import address_towards, addresses_of, interface_for, on_one_machine

if TYPE_CHECKING:
    from paceline.air.errors import WorkerFailure
    from paceline.engine.base import WorkerGroup
    from paceline.engine.places import WorkerPlace
    from paceline.train.horovod.rendezvous import Rendezvous


@names_what_was_meant()
@dataclass
class HorovodConfig(BackendConfig):
    """How the workers of a HorovodTrainer are connected. The engine starts them: nobody logs in anywhere, so that
    `key`, the `ssh_` settings and `placement_group_timeout_s` are taken for the sake of existing code and change
    nothing.

    Horovod's own variables (HOROVOD_GLOO_TIMEOUT_SECONDS, HOROVOD_LOG_LEVEL, HOROVOD_GLOO_IFACE, HOROVOD_CYCLE_TIME,
    ...) can be set in the environment; where they say the same as a setting here, they win.
    """

    nics: Iterable[str] | None = None
    """Network interfaces: a worker talks over the first one of them that its machine has. None: on one machine
    loopback, which nobody else can reach; on several, the one that has the address of the worker's machine."""
    verbose: int = 1
    """What Horovod writes into the workers' logs: 0 errors, 1 warnings too, 2 what it does, 3 every detail."""
    key: str | None = None
    """Not used."""
    ssh_port: int | None = None
    """Not used."""
    ssh_identity_file: str | None = None
    """Not used."""
    ssh_str: str | None = None
    """Not used."""
    timeout_s: float = 300
    """How long `hvd.init()` waits for the other workers to call it, and an operation for one that does not answer."""
    placement_group_timeout_s: float = 100
    """Not used."""

    def __post_init__(self) -> None:
        check_seconds(self.timeout_s, "HorovodConfig(timeout_s)")
        whole_number(self.verbose, "HorovodConfig(verbose)", least=0)
        if self.nics is not None:
            self.nics = _names(self.nics)

    def interface(self, place: WorkerPlace, there: Sequence[str]) -> str:
        """The one over which a worker talks, of those that its machine has; for a config that names some."""
        assert self.nics is not None
        names = list(self.nics)
        for name in names:
            if name in there:
                return name
        raise ConfigError(
            f"HorovodConfig(nics={names!r}): {place.node.hostname} has none of them, but {', '.join(there)}. "
            "Leave nics out to let the addresses decide."
        )

    @property
    def backend_cls(self) -> type[HorovodBackend]:
        return HorovodBackend


def _names(nics: Any) -> tuple[str, ...]:
    """As a tuple; a set has no order of its own."""
    if isinstance(nics, str) or not isinstance(nics, Iterable):
        names: list[Any] = [nics]
    else:
        names = list(nics)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"HorovodConfig(nics={nics!r}): give names of network interfaces, e.g. ['eth0'].")
    return tuple(sorted(names) if isinstance(nics, set | frozenset) else names)


@dataclass
class HorovodTorchConfig(HorovodConfig):
    """The same, for a train function that uses PyTorch and not TensorFlow: its workers can be forked."""

    @property
    def backend_cls(self) -> type[HorovodBackend]:
        return HorovodTorchBackend


_LEAVE_TIMEOUT_S = 5.0
_LOG_LEVELS = ("error", "warning", "info", "debug")
_ERRORS_OF_TENSORFLOW = "2"
_IN_INIT = re.compile(r'horovod/common/basics\.py", line \d+ in init$', re.MULTILINE)


class HorovodBackend(Backend):
    """Every attempt has a rendezvous server of its own: what an earlier one left in its store would connect the
    workers with processes that are gone. A single worker needs none. On the driver's machine it is the driver's;
    elsewhere rank 0 hosts it, because its address is the one that all workers are known to reach.

    Workers are new interpreters, because TensorFlow does not work in a forked process.
    """

    fresh: ClassVar[bool] = True
    share_cuda_visible_devices: ClassVar[bool] = True
    """So that the device of a worker is `hvd.local_rank()`, as Horovod's users write it."""
    hide_other_gpus: ClassVar[bool] = True
    """TensorFlow takes every GPU that it sees, and all of its memory, in each worker."""
    collateral_phrases: ClassVar[tuple[str, ...]] = (
        "horovod has been shut down",
        "gloo/transport",
        "nccl communicator was aborted",
    )
    collective_frames: ClassVar[tuple[str, ...]] = (
        *(f"horovod.torch.mpi_ops:{name}" for name in ("synchronize", "barrier", "join")),
        *(f"horovod.torch.functions:{name}" for name in ("broadcast_object", "allgather_object")),
        "horovod.common.basics:init",
    )
    mixed_frames: ClassVar[tuple[str, ...]] = (
        *(f"horovod.tensorflow.mpi_ops:{name}" for name in ("_allreduce", "allgather", "broadcast", "join", "barrier")),
        "tensorflow.python.eager.execute:quick_execute",
    )

    def __init__(self) -> None:
        self._rendezvous: Rendezvous | None = None

    def environment(self, backend_config: BackendConfig) -> dict[str, str]:
        assert isinstance(backend_config, HorovodConfig)
        variables = {
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(backend_config.timeout_s)),
            "HOROVOD_LOG_LEVEL": _LOG_LEVELS[min(backend_config.verbose, len(_LOG_LEVELS) - 1)],
            "TF_CPP_MIN_LOG_LEVEL": _ERRORS_OF_TENSORFLOW,
        }
        # For TensorFlow, which a function may use in ways that are not seen beforehand. Horovod's optimizers and
        # callbacks know Keras 2 only, which tf_keras is.
        if find_spec("tf_keras") is not None:
            variables["TF_USE_LEGACY_KERAS"] = "1"
        return variables

    @classmethod
    def hint_for(cls, failure: WorkerFailure) -> str:
        if failure.signal == signal.SIGABRT and _IN_INIT.search(failure.traceback):
            return (
                "hvd.init() ends the process if other workers have not called it within HorovodConfig(timeout_s=...): "
                "this rank's log names them, as 'key(s)'. See where they are."
            )
        return ""

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, HorovodConfig)
        places = worker_group.places
        addresses = addresses_of(places)
        if not on_one_machine(places):
            for place, found in zip(places, worker_group.execute(addresses_of_own_name), strict=True):
                check_own_name(place, found)
        interfaces = self._interfaces(worker_group, backend_config, addresses)
        slots = slots_of(places)
        port = None if len(places) == 1 else self._open_rendezvous(worker_group, slots, addresses)
        variables = [_variables(slot, addresses[0], port) for slot in slots]
        defaults = [_interface_variables(interface, on_one_machine(places)) for interface in interfaces]
        worker_group.execute_each(enter, list(zip(variables, defaults, strict=True)))

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(leave, timeout=_LEAVE_TIMEOUT_S)
        if self._rendezvous is None:
            worker_group.execute_single(0, close_rendezvous)  # The others have said goodbye to it.

    def on_end(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _interfaces(
        self, worker_group: WorkerGroup, config: HorovodConfig, addresses: Sequence[str]
    ) -> list[str | None]:
        """Over which each worker talks; None leaves that to Horovod."""
        if config.nics is not None:
            found = worker_group.execute(interface_names)
            return [config.interface(place, there) for place, there in zip(worker_group.places, found, strict=True)]
        peers = sorted(set(addresses))
        return worker_group.execute_each(interface_for, [(address, peers) for address in addresses])

    def _open_rendezvous(self, worker_group: WorkerGroup, slots: Sequence[Slot], addresses: Sequence[str]) -> int:
        if all(place.node.is_drivers for place in worker_group.places):
            from paceline.train.horovod.rendezvous import Rendezvous

            self._rendezvous = Rendezvous(slots)
            return self._rendezvous.port
        callers = worker_group.execute(address_towards, addresses[0])
        admitted = sorted({*addresses, *filter(None, callers)})
        port: int = worker_group.execute_single(0, host_rendezvous, slots, addresses[0], admitted)
        return port


class HorovodTorchBackend(HorovodBackend):
    """For a train function with PyTorch and without TensorFlow: workers are forked from a process that loaded it."""

    fresh: ClassVar[bool] = False
    hide_other_gpus: ClassVar[bool] = False
    preload: ClassVar[tuple[str, ...]] = (*FOR_TORCH_TRAINING, "horovod.torch", "paceline.train.horovod.backend")
    thread_setters: ClassVar[tuple[str, ...]] = ("torch:set_num_threads",)


def check_own_name(place: WorkerPlace, found: Sequence[str]) -> None:
    """Horovod lets the workers connect twice. The second time it ignores the interface and looks up the name of its own
    machine; one that does not resolve ends the process with SIGSEGV."""
    name, address = place.node.hostname, place.node.address
    if not found:
        problem = "which does not resolve"
    elif ipaddress.ip_address(found[0]).is_loopback:
        problem = f"which resolves to {found[0]}: other machines do not reach that"
    else:
        return
    raise ConfigError(
        f"Horovod on {name} looks for its own machine by name, {problem}. Put the line '{address} {name}' into "
        "/etc/hosts there, before other lines with that name, or use TorchTrainer, which needs no names."
    )


@dataclass(frozen=True)
class Slot:
    """A rank's place among all, among those of its machine, and among those with its local rank on other machines."""

    host: str
    """The name by which Horovod knows who is on one machine."""
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int


def slots_of(places: Sequence[WorkerPlace]) -> list[Slot]:
    """Every rank's; machines may have unequally many workers."""
    hosts_with = {
        place.local_rank: [other.node_rank for other in places if other.local_rank == place.local_rank]
        for place in places
    }
    return [
        Slot(
            host=f"node{place.node_rank}",
            rank=place.rank,
            local_rank=place.local_rank,
            cross_rank=sorted(hosts_with[place.local_rank]).index(place.node_rank),
            size=len(places),
            local_size=place.local_world_size,
            cross_size=len(hosts_with[place.local_rank]),
        )
        for place in places
    ]


def _variables(slot: Slot, address: str, port: int | None) -> dict[str, str | None]:
    """What Horovod's launcher would set; the address is that of rank 0."""
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_HOSTNAME": slot.host,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": None if port is None else address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": None if port is None else str(port),
    }


def _interface_variables(interface: str | None, on_one_machine: bool) -> dict[str, str]:
    """NCCL is told only where workers are on several machines: on one it finds better ways."""
    if interface is None:
        return {}
    for_nccl = {} if on_one_machine else {"NCCL_SOCKET_IFNAME": f"={interface}"}
    return {"HOROVOD_GLOO_IFACE": interface, **for_nccl}


# -- in a worker: what it is told before it calls `hvd.init()`, and what it gives back in the end ---
# The driver imports this module too, so Horovod is not imported here; it is the train function that chooses a flavour.


_FLAVOURS = ("horovod.torch", "horovod.tensorflow")


@dataclass
class RendezvousHost(WorkerState):
    """On rank 0, if the driver is elsewhere."""

    rendezvous: Rendezvous | None = None

    def close(self) -> None:
        if self.rendezvous is not None:
            self.rendezvous.close()


def addresses_of_own_name() -> list[str]:
    """What the name of this machine resolves to; empty if it does not."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    return [str(address[0]) for *_, address in found]


def interface_names() -> list[str]:
    """Those that this machine has."""
    return [name for _, name in socket.if_nameindex()]


def host_rendezvous(slots: Sequence[Slot], address: str, admitted: Sequence[str]) -> int:
    """On rank 0: open the place where the workers find each other; returns its port."""
    from paceline.train.horovod.rendezvous import Rendezvous

    RendezvousHost.here().rendezvous = rendezvous = Rendezvous(slots, admitted, address)
    return rendezvous.port


def close_rendezvous() -> None:
    RendezvousHost.end()


def enter(environment: Mapping[str, str | None], defaults: Mapping[str, str]) -> None:
    """Set this rank's variables; None removes one that would lead elsewhere. Of `defaults`, those stay that the user
    has set."""
    leave_horovod()
    CORRECTIONS.install()
    for name, chosen in defaults.items():
        os.environ.setdefault(name, chosen)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def leave() -> None:
    """End Horovod's threads, unless the train function already did."""
    leave_horovod()
    CORRECTIONS.remove()


def leave_horovod() -> None:
    """Each flavour that is loaded has an engine of its own. A failed run in this same process leaves it running."""
    for name in _FLAVOURS:
        flavour = sys.modules.get(name)
        if flavour is not None and flavour.is_initialized():
            flavour.shutdown()


# -- Keras -----------------------------------------------------------------------------------------
# Horovod knows Keras 2. Beside a Keras 3, its callbacks mix both, and its optimizers do nothing: every worker would
# train alone, without a word. With tf_keras installed `tf.keras` is a Keras 2, and all of it works.


def _take_backend_of_tf_keras(module: ModuleType) -> None:
    """Models come from `tf.keras`, which need not be the package called keras, whose backend was imported."""
    module.K = module.keras.backend  # type: ignore[attr-defined]  # what a module has is its own affair


def _refuse_keras_3(module: ModuleType) -> None:
    make = module.create_distributed_optimizer

    @functools.wraps(make)
    def checked(keras: Any, optimizer: Any, *arguments: Any, **settings: Any) -> Any:
        if any(base.__module__.partition(".")[0] == "keras" for base in type(optimizer).__mro__):
            raise ConfigError(
                f"Horovod would not average the gradients of this {type(optimizer).__name__}, which is an optimizer of "
                "Keras 3: every worker would train alone. Use tf.keras and horovod.tensorflow.keras with tf_keras "
                "installed (pip install --no-deps tf_keras) and TF_USE_LEGACY_KERAS not set to 0, or a loop of your "
                "own with horovod.tensorflow.DistributedGradientTape."
            )
        return make(keras, optimizer, *arguments, **settings)

    module.create_distributed_optimizer = checked  # type: ignore[attr-defined]  # as above


CORRECTIONS = AfterImport(
    {
        "horovod._keras": _refuse_keras_3,
        "horovod.tensorflow.keras": _take_backend_of_tf_keras,
        "horovod.tensorflow.keras.callbacks": _take_backend_of_tf_keras,
    }
)
