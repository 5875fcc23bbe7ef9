"""HorovodBackend: tells the workers of a run where they meet; `hvd.init()` in the train function connects them."""

from __future__ import annotations

import functools
import math
import os
import re
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.checks import check_seconds, names_what_was_meant, whole_number
from paceline.air.errors import ConfigError
from paceline.run.backend import Backend, BackendConfig
from paceline.train.imports import FOR_TORCH_TRAINING, AfterImport

if TYPE_CHECKING:
    from paceline.air.errors import WorkerFailure
    from paceline.engine.base import WorkerGroup
    from paceline.train.horovod.rendezvous import Rendezvous


LOOPBACK = "127.0.0.1"
HOST = "localhost"
"""The name by which Horovod's workers know that they are on one machine."""


@names_what_was_meant()
@dataclass
class HorovodConfig(BackendConfig):
    """How the workers of a HorovodTrainer are connected. They are processes of this machine: nobody logs in anywhere,
    so that `key`, the `ssh_` settings and `placement_group_timeout_s` are taken for the sake of existing code and
    change nothing.

    Horovod's own variables (HOROVOD_GLOO_TIMEOUT_SECONDS, HOROVOD_LOG_LEVEL, HOROVOD_GLOO_IFACE, HOROVOD_CYCLE_TIME,
    ...) can be set in the environment; where they say the same as a setting here, they win.
    """

    nics: Iterable[str] | None = None
    """Network interfaces: the workers talk over the first one of them that this machine has. None: loopback, which
    nobody else can reach."""
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
        self.interface()

    def interface(self) -> str:
        """The one over which the workers talk."""
        there = [name for _, name in socket.if_nameindex()]
        if self.nics is None:
            return "lo0" if "lo" not in there and "lo0" in there else "lo"
        for name in self.nics:
            if name in there:
                return name
        raise ConfigError(
            f"HorovodConfig(nics={list(self.nics)!r}): this machine has none of them, but {', '.join(there)}. "
            "Leave nics away to use loopback."
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
    workers with processes that are gone. A single worker needs none.

    Workers are new interpreters, because TensorFlow does not work in a forked process.
    """

    one_machine: ClassVar[bool] = True
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

    def __init__(self) -> None:
        self._rendezvous: Rendezvous | None = None

    def environment(self, backend_config: BackendConfig) -> dict[str, str]:
        assert isinstance(backend_config, HorovodConfig)
        variables = {
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(backend_config.timeout_s)),
            "HOROVOD_GLOO_IFACE": backend_config.interface(),
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
        world_size = worker_group.placement.world_size
        port = None if world_size == 1 else self._open_rendezvous(world_size)
        for rank in range(world_size):
            worker_group.execute_single(rank, enter, _variables(rank, world_size, port))

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(leave, timeout=_LEAVE_TIMEOUT_S)

    def on_end(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _open_rendezvous(self, world_size: int) -> int:
        from paceline.train.horovod.rendezvous import Rendezvous

        self._rendezvous = Rendezvous(world_size)
        return self._rendezvous.port


class HorovodTorchBackend(HorovodBackend):
    """For a train function with PyTorch and without TensorFlow: workers are forked from a process that loaded it."""

    fresh: ClassVar[bool] = False
    hide_other_gpus: ClassVar[bool] = False
    preload: ClassVar[tuple[str, ...]] = (*FOR_TORCH_TRAINING, "horovod.torch", "paceline.train.horovod.backend")
    thread_setters: ClassVar[tuple[str, ...]] = ("torch:set_num_threads",)


def _variables(rank: int, world_size: int, port: int | None) -> dict[str, str | None]:
    """What Horovod's launcher would set. All workers are on this machine: they differ by their local rank."""
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_HOSTNAME": HOST,
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(world_size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(world_size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": None if port is None else LOOPBACK,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": None if port is None else str(port),
    }


# -- in a worker: what it is told before it calls `hvd.init()`, and what it gives back in the end ---
# The driver imports this module too, so Horovod is not imported here; it is the train function that chooses a flavour.


_FLAVOURS = ("horovod.torch", "horovod.tensorflow")


def enter(environment: Mapping[str, str | None]) -> None:
    """Set this rank's variables; None removes one that would lead elsewhere."""
    leave_horovod()
    CORRECTIONS.install()
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
