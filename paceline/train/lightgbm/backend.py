"""LightGBMBackend: connects the workers of a run in LightGBM's network."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.air.checks import names_what_was_meant
from paceline.run.backend import Backend, BackendConfig
from paceline.train.lightgbm import network

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup

_LEAVE_TIMEOUT_S = 5.0
_MARGIN_S = 1.0
"""So that rank 0, which knows who is missing, is the first to say so."""


class LightGBMBackend(Backend):
    """The workers are connected before the train function starts, and stay so for all that it trains.

    While they connect, LightGBM listens on all interfaces of the machine, which it offers no way to change. The
    ports are closed again when everyone is there, some milliseconds later.
    """

    one_machine: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = (
        "lightgbm",
        "pyarrow",
        "pyarrow.compute",
        "multiprocessing.connection",
        "cloudpickle",
        "xxhash",
        "paceline.run.worker",
        "paceline.train.lightgbm.loop",
    )

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        if worker_group.world_size == 1:
            return
        token, seconds = secrets.token_bytes(32), worker_group.placement.start_timeout_s
        hub = worker_group.execute_single(0, network.open_hub)
        for rank in range(worker_group.world_size):
            worker_group.execute_single(rank, network.take_place, rank, worker_group.world_size)
        worker_group.execute(network.join, hub, token, seconds, timeout=seconds + _MARGIN_S)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(network.leave, timeout=_LEAVE_TIMEOUT_S)


class LightGBMLoopBackend(LightGBMBackend):
    """For workers that run our own loop: without scikit-learn they start most of a second earlier."""

    preload: ClassVar[tuple[str, ...]] = ("paceline.train.lightgbm.light_import", *LightGBMBackend.preload)


@names_what_was_meant()
@dataclass
class LightGBMConfig(BackendConfig):
    """There is nothing to set: addresses and ports are found at the start of every attempt."""

    @property
    def backend_cls(self) -> type[LightGBMBackend]:

        return LightGBMBackend


@dataclass
class LightGBMLoopConfig(LightGBMConfig):
    """The same for workers that are given parameters, not a function of the user's."""

    @property
    def backend_cls(self) -> type[LightGBMBackend]:

        return LightGBMLoopBackend
