"""DDPStrategy, FSDPStrategy and DeepSpeedStrategy: Lightning's, for workers that are connected already.

How processes are launched and how a model is wrapped for FSDP cannot be chosen in a public way: the names with an
underscore that are overridden here are those of Lightning 2.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError
from paceline.air.session import SessionProtocol, current, required
from paceline.train.torch.devices import main_device

if TYPE_CHECKING:
    import torch


class WorkerEnvironment:
    """The workers are there already, and the session knows their ranks: Lightning starts no processes.

    For `lightning.pytorch.Trainer(plugins=[LightningEnvironment()], strategy=DDPStrategy(), ...)` in the function of a
    TorchTrainer.
    """

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        return current() is not None

    def world_size(self) -> int:
        return worker_session("LightningEnvironment").world_size

    def global_rank(self) -> int:
        return worker_session("LightningEnvironment").world_rank

    def local_rank(self) -> int:
        return worker_session("LightningEnvironment").local_rank

    def node_rank(self) -> int:
        return worker_session("LightningEnvironment").node_rank

    def set_world_size(self, size: int) -> None:
        """Lightning counts devices of its own; how many workers there are is settled."""

    def set_global_rank(self, rank: int) -> None:
        """As for the size."""


def worker_session(name: str) -> SessionProtocol:
    """The session of this worker; `name` is what needs it."""
    return required(
        f"paceline.train.lightning.{name} works inside of a train function only: make the Lightning Trainer in the "
        "function that you pass to TorchTrainer."
    )


class WorkerStrategy:
    """Lightning's strategy of the same name, with the arguments of that.

    It uses the process group that the workers are in and leaves it to them afterwards, computes on the worker's own
    device, deals data over the workers, and starts no processes.
    """

    cluster_environment: Any
    _launcher: Any

    @functools.cached_property  # Lightning asks several times per step
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


class ShardedStrategy(WorkerStrategy):
    """As the others; on the CPU too, where Lightning's own does not run, so that a script can be tried out there."""

    cpu_offload: Any
    mixed_precision_config: Any
    sharding_strategy: Any
    kwargs: dict[str, Any]
    model: Any
    _state_dict_type: str
    _activation_checkpointing_kwargs: dict[str, Any] | None

    def _setup_model(self, model: Any) -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel

        wrapped = any(isinstance(each, FullyShardedDataParallel) for each in model.modules())
        if wrapped or self.root_device.type != "cpu":
            return super()._setup_model(model)  # type: ignore[misc]
        session = worker_session(type(self).__name__)
        if self._activation_checkpointing_kwargs:
            session.warn("FSDP on the CPU recomputes no activations: results are the same, memory is not saved.")
        # Lightning names the device by its number, and PyTorch takes every number for that of a GPU.
        options = {"cpu_offload": self.cpu_offload, "mixed_precision": self.mixed_precision_config, **self.kwargs}
        return FullyShardedDataParallel(
            model, device_id=self.root_device, sharding_strategy=self.sharding_strategy, **options
        )

    def lightning_module_state_dict(self) -> dict[str, Any]:
        if self.root_device.type != "cpu" or self._state_dict_type != "full":
            weights: dict[str, Any] = super().lightning_module_state_dict()  # type: ignore[misc]
            return weights
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        # The other way "moves" weights to the CPU, which is no copy there, and then frees them.
        return get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True))


def check_environment(strategy: WorkerStrategy) -> None:
    """With another environment every worker would take itself for the only one, and train a model of its own."""
    if not isinstance(strategy.cluster_environment, WorkerEnvironment):
        raise ConfigError(
            f"The Lightning Trainer has the environment {whose(strategy.cluster_environment)}, which does not know the "
            "other workers: make it with Trainer(plugins=[paceline.train.lightning.LightningEnvironment()], ...)."
        )


def whose(part: object) -> str:
    """Its class and the package that has it: ours have the names of Lightning's."""
    return f"{type(part).__name__} of {type(part).__module__.partition('.')[0]}"
