"""DDPStrategy, FSDPStrategy and DeepSpeedStrategy: Lightning's, for workers that are connected already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError
from paceline.train.lightning.environment import WorkerEnvironment, worker_session
from paceline.train.torch.devices import main_device

if TYPE_CHECKING:
    import torch


class WorkerStrategy:
    """Lightning's strategy of the same name, with the arguments of that.

    It uses the process group that the workers are in and leaves it to them afterwards, computes on the worker's own
    device, deals data over the workers, and starts no processes.
    """

    cluster_environment: Any
    _launcher: Any

    @property
    def root_device(self) -> torch.device:
        return main_device()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        session = worker_session(type(self).__name__)
        return {"num_replicas": session.world_size, "rank": session.world_rank}

    def _configure_launcher(self) -> None:
        self._launcher = None

    def setup_environment(self) -> None:
        check_environment(self)
        super().setup_environment()  # type: ignore[misc]  # Lightning's half


def check_environment(strategy: WorkerStrategy) -> None:
    """With another environment every worker would take itself for the only one, and train a model of its own."""
    if not isinstance(strategy.cluster_environment, WorkerEnvironment):
        raise ConfigError(
            f"The Lightning Trainer has a {type(strategy.cluster_environment).__name__} that does not know the other "
            "workers: make it with Trainer(plugins=[paceline.train.lightning.LightningEnvironment()], ...)."
        )
