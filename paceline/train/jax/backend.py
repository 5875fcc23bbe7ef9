"""JaxBackend: makes the workers of a run the processes of one JAX program."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.checks import check_seconds, names_what_was_meant, whole_number
from paceline.air.errors import ConfigError
from paceline.engine.places import LOOPBACK
from paceline.run.backend import Backend, BackendConfig, WorkerState
from paceline.train.network import addresses_of, bound_socket, on_one_machine, open_sockets, send_no_more

if TYPE_CHECKING:
    from paceline.air.config import ScalingConfig
    from paceline.air.errors import WorkerFailure
    from paceline.engine.base import WorkerGroup
    from paceline.engine.places import WorkerPlace

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_OF_GPUS = ("cuda", "rocm")


@names_what_was_meant()
@dataclass
class JaxConfig(BackendConfig):
    """What the workers of a JaxTrainer compute on, and how they are connected."""

    platform: str | None = None
    """"cpu", "cuda", "rocm" or "tpu". None takes cuda for workers with GPUs, tpu for workers with TPUs
    (`ScalingConfig(resources_per_worker={"TPU": n})`), and cpu for all others."""
    cpu_devices_per_worker: int = 1
    """As how many devices JAX shows the CPU of a worker; with several, you can try shardings without accelerators."""
    heartbeat_timeout_s: float = 100
    """JAX ends its other processes if one gives no sign of life for so long. A worker that dies is noticed at once in
    any case."""

    def __post_init__(self) -> None:
        if self.platform is not None and self.platform not in PLATFORMS:
            raise ConfigError(
                f"JaxConfig(platform={self.platform!r}): choose one of {', '.join(map(repr, PLATFORMS))}, or None to "
                "let the workers' resources decide."
            )
        whole_number(self.cpu_devices_per_worker, "JaxConfig(cpu_devices_per_worker)", least=1)
        check_seconds(self.heartbeat_timeout_s, "JaxConfig(heartbeat_timeout_s)")

    def check(self, scaling: ScalingConfig) -> None:
        if self.platform in _OF_GPUS and not scaling.num_gpus_per_worker:
            raise ConfigError(
                f"JaxConfig(platform={self.platform!r}) computes on GPUs, but the workers have none: ask for them with "
                "ScalingConfig(use_gpu=True)."
            )

    @property
    def backend_cls(self) -> type[JaxBackend]:
        return JaxBackend


_LEAVE_TIMEOUT_S = 5.0
_MULTIHOST = "jax.experimental.multihost_utils"


class JaxBackend(Backend):
    """Rank 0 runs JAX's coordination service, at a port that is new in each attempt.

    Workers are forked from a process that has imported JAX and has not used it: JAX starts its threads when it is
    first used. A process that has used it cannot be forked.
    """

    preload: ClassVar[tuple[str, ...]] = (
        "jax",
        "jax.numpy",
        # What every worker of ours goes through, besides what all runs load.
        "xxhash",
        "paceline.train.functions",
        "paceline.train.jax.backend",
    )
    hide_other_gpus: ClassVar[bool] = True
    """JAX takes every GPU that it sees, and most of its memory, in each worker."""
    thread_setters: ClassVar[tuple[str, ...]] = ("paceline.train.jax.backend:set_threads",)
    collateral_phrases: ClassVar[tuple[str, ...]] = ("gloo/transport", "the jax distributed service detected")
    collective_errors: ClassVar[tuple[str, ...]] = ("gloo/transport",)
    collective_frames: ClassVar[tuple[str, ...]] = tuple(
        f"{_MULTIHOST}:{name}" for name in ("sync_global_devices", "broadcast_one_to_all", "process_allgather")
    )
    mixed_frames: ClassVar[tuple[str, ...]] = (
        *(f"jax._src.array:{name}" for name in ("_value", "__array__", "__float__", "__int__", "__bool__", "item")),
        "jax._src.api:block_until_ready",
        "jax._src.api:device_get",
    )
    """A computation runs on while Python does; these wait for it."""

    @classmethod
    def hint_for(cls, failure: WorkerFailure) -> str:
        if "spans non-addressable" in failure.message:
            return (
                "This process has only a part of that array. Compute what you need inside of jit with a replicated "
                "result, or collect it with jax.experimental.multihost_utils.process_allgather(array, tiled=True)."
            )
        return ""

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, JaxConfig)
        places, world_size = worker_group.places, worker_group.world_size
        is_driver = places[0].node.is_drivers and worker_group.processes().get(0) == os.getpid()
        platforms = [_platform(backend_config, place) for place in places]
        if not is_driver:  # the JAX of the user's own program stays as it is
            devices = backend_config.cpu_devices_per_worker
            worker_group.execute_each(choose_devices, [(platform, devices) for platform in platforms])
        if world_size == 1:
            return
        addresses = addresses_of(places)
        port = worker_group.execute_single(0, hold_port, addresses[0])
        start_timeout_s = worker_group.placement.start_timeout_s
        for_gloo = [_unshared_loopback()] * world_size if on_one_machine(places) else addresses
        # With several devices, one may wait for another one of its own process, which does not let go of it.
        is_plain = backend_config.cpu_devices_per_worker == 1
        self.ranks_leave = is_plain and all(platform == "cpu" for platform in platforms)
        limits = start_timeout_s, backend_config.heartbeat_timeout_s
        worker_group.execute_each(
            join,
            [(f"{addresses[0]}:{port}", rank, for_gloo, *limits) for rank in range(world_size)],
            timeout=start_timeout_s,
        )

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(leave, timeout=_LEAVE_TIMEOUT_S)


def _platform(config: JaxConfig, place: WorkerPlace) -> str:
    return config.platform or ("cuda" if place.gpus else "cpu")


def _unshared_loopback() -> str:
    """A loopback address that most likely nobody else on this machine uses: connections at it are those of the run."""
    if not sys.platform.startswith("linux"):  # others have one loopback address only
        return LOOPBACK
    return ".".join(["127", *(str(random.randint(1, 254)) for _ in range(3))])


# -- in a worker -----------------------------------------------------------------------------------
# The driver imports this module too, so JAX is only imported inside of these functions.


@dataclass
class JaxProcess(WorkerState):
    """This worker's part in the program."""

    held_port: socket.socket | None = None
    """On rank 0: bound, never listening. The coordination service binds the same port beside it."""
    gloo_addresses: Sequence[str] = ()
    """Where the ranks' Gloo connections are."""
    coordinator_port: int = 0
    sockets_before: dict[int, int] = field(default_factory=dict)
    """Those that were open already when this worker joined the others."""

    def leave_peers(self) -> None:
        """Send nothing more, so that a rank that waits for this one gets an error. What it has sent still arrives.

        In the background: computations that this rank has started may run on, and may wait for others in vain.
        """
        import jax

        if self.gloo_addresses and jax.distributed.is_initialized():
            threading.Thread(target=self._let_go, name="paceline-leaving", daemon=True).start()

    def _let_go(self) -> None:
        _wait_for_computations()
        new = open_sockets().items() - self.sockets_before.items()
        send_no_more([descriptor for descriptor, _ in new], self._is_gloos)

    def _is_gloos(self, own: tuple[Any, ...], peer: tuple[Any, ...]) -> bool:
        if self.coordinator_port in (own[1], peer[1]):
            return False
        return own[0] in self.gloo_addresses or peer[0] in self.gloo_addresses

    def close(self) -> None:
        if self.held_port is not None:
            self.held_port.close()


def set_threads(threads: int) -> None:
    """XLA has pools of as many threads as this variable says, and else as there are cores. It reads the variable when
    JAX is first used."""
    os.environ.setdefault("NPROC", str(threads))


def choose_devices(platform: str, cpu_devices: int) -> None:
    """Let JAX use this platform, and the CPU besides; what the user has set in the environment stays."""
    import jax

    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", platform if platform == "cpu" else f"{platform},cpu")
    if cpu_devices > 1:
        jax.config.update("jax_num_cpu_devices", cpu_devices)


def hold_port(address: str) -> int:
    """On rank 0: keep a port free for the coordination service."""
    process = JaxProcess.here()
    process.held_port = bound_socket(address, shared=True)
    return int(process.held_port.getsockname()[1])


def join(
    coordinator: str, rank: int, gloo_addresses: Sequence[str], start_timeout_s: float, heartbeat_timeout_s: float
) -> None:
    """Become one of the processes of the program, together with all other ranks."""
    import jax

    process = JaxProcess.here()
    process.gloo_addresses = gloo_addresses
    process.coordinator_port = int(coordinator.rpartition(":")[2])
    process.sockets_before = open_sockets()
    if "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:
        # It takes SIGTERM for itself; train.should_checkpoint() says what it would.
        jax.config.update("jax_enable_preemption_service", False)
    _bind_gloo_to(gloo_addresses[rank])
    jax.distributed.initialize(
        coordinator_address=coordinator,
        coordinator_bind_address=coordinator,  # not on all interfaces, as by default
        num_processes=len(gloo_addresses),
        process_id=rank,
        cluster_detection_method="deactivate",
        initialization_timeout=math.ceil(start_timeout_s),
        heartbeat_timeout_seconds=math.ceil(heartbeat_timeout_s),
        shutdown_timeout_seconds=int(_LEAVE_TIMEOUT_S),
    )


def _bind_gloo_to(address: str) -> None:
    """Gloo would listen at the address that the name of the machine resolves to, and JAX has no setting for it."""
    try:
        from jax._src.lib import _jax
    except ImportError:
        return
    make = getattr(_jax, "make_gloo_tcp_collectives", None)
    if make is not None:
        make = getattr(make, "func", make)
        _jax.make_gloo_tcp_collectives = functools.partial(make, hostname=address)


def _wait_for_computations() -> None:
    """Until this rank's part in all that it has started is done: a computation waits for those before it."""
    import jax
    import numpy as np
    from jax._src import xla_bridge

    if not xla_bridge.backends_are_initialized():  # The train function has computed nothing with JAX.
        return
    devices = np.array(jax.local_devices())
    sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("local",)), jax.sharding.PartitionSpec("local"))
    with contextlib.suppress(Exception):  # whoever waits for the result has seen the error
        jax.jit(lambda: jax.numpy.zeros(len(devices)), out_shardings=sharding)().block_until_ready()


def leave() -> None:
    """Leave the program, unless the train function already did."""
    import jax

    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
