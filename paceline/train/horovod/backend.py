"""HorovodBackend: tells the workers of a run where they meet; `hvd.init()` in the train function connects them."""

from __future__ import annotations

import math
import re
import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from paceline.run.backend import Backend, BackendConfig
from paceline.train.horovod import worker
from paceline.train.horovod.config import HOST, LOOPBACK, HorovodConfig
from paceline.train.preloads import FOR_TORCH_TRAINING

if TYPE_CHECKING:
    from paceline.air.errors import WorkerFailure
    from paceline.engine.base import WorkerGroup
    from paceline.train.horovod.rendezvous import Rendezvous

_LEAVE_TIMEOUT_S = 5.0
_LOG_LEVELS = ("error", "warning", "info", "debug")
_ERRORS_OF_TENSORFLOW = "2"
_IN_INIT = re.compile(r'horovod/common/basics\.py", line \d+ in init$', re.MULTILINE)


class HorovodBackend(Backend):
    """Every attempt has a rendezvous server of its own: what an earlier one left in its store would connect the
    workers with processes that are gone. A single worker needs none.

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
            worker_group.execute_single(rank, worker.enter, _variables(rank, world_size, port))

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(worker.leave, timeout=_LEAVE_TIMEOUT_S)

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
    preload: ClassVar[tuple[str, ...]] = (*FOR_TORCH_TRAINING, "horovod.torch", "paceline.train.horovod.worker")
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
