"""XGBoostBackend: connects the workers of a run in XGBoost's collective."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.air.checks import names_what_was_meant
from paceline.air.errors import ConfigError
from paceline.run.backend import Backend, BackendConfig
from paceline.train.xgboost import collective

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup

_LEAVE_TIMEOUT_S = 5.0


class XGBoostBackend(Backend):
    """Rank 0 hosts XGBoost's tracker, on the loopback address; a single worker needs none.

    The driver never loads xgboost: a process that has run it cannot be forked afterwards.
    """

    one_machine: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = (
        "xgboost",
        "xgboost.tracker",
        "xgboost.collective",
        "xgboost.callback",
        # What every worker of ours goes through.
        "cloudpickle",
        "xxhash",
        "pyarrow.compute",
        "paceline.run.worker",
        "paceline.train.functions",
        "paceline.train.rounds",
        "paceline.train.trees.shard",
        "paceline.train.xgboost.callback",
        "paceline.train.xgboost.loop",
    )
    collateral_phrases: ClassVar[tuple[str, ...]] = ("src/collective/result.cc",)  # its network layer

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, XGBoostConfig)
        placement = worker_group.placement
        scratch = self._scratch_directory(os.path.dirname(placement.workers[0].cwd))
        for place in worker_group.places:
            worker_group.execute_single(place.rank, collective.prepare, place.rank, place.threads or 0, scratch)
        if placement.world_size == 1:
            return
        arguments = worker_group.execute_single(0, collective.host, placement.world_size, placement.start_timeout_s)
        worker_group.execute(collective.join, arguments, backend_config.timeout_s, timeout=placement.start_timeout_s)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(collective.leave, _LEAVE_TIMEOUT_S, timeout=2 * _LEAVE_TIMEOUT_S)

    def _scratch_directory(self, parent: str) -> str:
        """A directory that is gone with this attempt, also where its workers were killed: it is the driver's."""
        path = tempfile.mkdtemp(prefix=".xgboost-", dir=parent)
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path


class XGBoostLoopBackend(XGBoostBackend):
    """For workers that run our own loop: without scikit-learn they start most of a second earlier."""

    preload: ClassVar[tuple[str, ...]] = ("paceline.train.xgboost.light_import", *XGBoostBackend.preload)


@names_what_was_meant()
@dataclass
class XGBoostConfig(BackendConfig):
    """How the workers of an XGBoostTrainer are connected."""

    timeout_s: float = 1800
    """How long a worker waits for the others in one exchange, while they compute, before it fails. A worker that
    died is noticed at once."""

    def __post_init__(self) -> None:
        number = isinstance(self.timeout_s, int | float) and not isinstance(self.timeout_s, bool)
        if not number or not 1 <= self.timeout_s < float("inf"):
            raise ConfigError(
                f"XGBoostConfig(timeout_s={self.timeout_s!r}): give a number of seconds of at least 1, e.g. 1800."
            )

    @property
    def backend_cls(self) -> type[XGBoostBackend]:

        return XGBoostBackend


@dataclass
class XGBoostLoopConfig(XGBoostConfig):
    """The same for workers that are given parameters, not a function of the user's."""

    @property
    def backend_cls(self) -> type[XGBoostBackend]:

        return XGBoostLoopBackend
