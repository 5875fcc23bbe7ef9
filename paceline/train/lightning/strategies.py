"""Lightning's strategies (DDP, FSDP, model parallel, DeepSpeed), for workers that are connected already.

How processes are launched and how a model is wrapped for FSDP cannot be chosen in a public way: the names with an
underscore that are overridden here are those of Lightning 2.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError
from paceline.air.session import SessionProtocol, active, current, required
from paceline.run.worker_signals import is_heard
from paceline.train.lightning.packages import lightning, package_of
from paceline.train.sampler_notice import warn_of_samplers
from paceline.train.torch.devices import main_device

if TYPE_CHECKING:
    import torch


READ_EACH_ONCE = (
    'To read each row once, return prepare_data_loader(loader, uneven="all") of paceline.train.torch from '
    "val_dataloader() or test_dataloader(), or pass it to the Trainer."
)


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
        warn_of_samplers(session)
        return {"num_replicas": session.world_size, "rank": session.world_rank}

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Lightning weighs means by the mean number of rows of a rank, and would cut it to a whole number."""
        import torch

        if isinstance(tensor, torch.Tensor) and not tensor.is_floating_point() and reduce_op in ("mean", "avg"):
            tensor = tensor.to(torch.get_default_dtype())
        return super().reduce(tensor, group, reduce_op)  # type: ignore[misc]

    def process_dataloader(self, dataloader: object) -> object:
        from torch.utils.data import DataLoader, DistributedSampler

        from paceline.train.torch.data_loader import warn_if_it_repeats

        if isinstance(dataloader, DataLoader):
            session = worker_session(type(self).__name__)
            warn_if_it_repeats(dataloader, session, READ_EACH_ONCE, dealt_by=DistributedSampler)
        processed: object = super().process_dataloader(dataloader)  # type: ignore[misc]  # Lightning's half
        return processed

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


class MeshStrategy(WorkerStrategy):
    """Lightning's ModelParallelStrategy, with the arguments of that: the module's configure_model() applies
    fully_shard() of PyTorch.

    A size that is "auto" is what the other one leaves. If both are, the workers of a machine share each tensor, as in
    Lightning.
    """

    device_mesh: Any
    _data_parallel_size: int | str
    _tensor_parallel_size: int | str
    _save_distributed_checkpoint: bool

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        warn_of_samplers(worker_session(type(self).__name__))
        data = self.device_mesh["data_parallel"]  # workers that share a tensor need the same rows
        return {"num_replicas": data.size(), "rank": data.get_local_rank()}

    def setup_environment(self) -> None:
        self._choose_sizes(worker_session(type(self).__name__))
        super().setup_environment()

    def _choose_sizes(self, session: SessionProtocol) -> None:
        size, nodes = session.world_size, -(-session.world_size // session.local_world_size)
        if self._save_distributed_checkpoint and nodes > 1:
            raise ConfigError(
                "ModelParallelStrategy(save_distributed_checkpoint=True) needs a directory that all workers write to, "
                f"and they are on {nodes} machines: pass save_distributed_checkpoint=False."
            )
        data, tensor = self._data_parallel_size, self._tensor_parallel_size
        if data == "auto":
            data = nodes if tensor == "auto" else size // int(tensor)
        if tensor == "auto":
            tensor = size // int(data)
        if int(data) * int(tensor) != size:
            raise ConfigError(
                f"ModelParallelStrategy: data_parallel_size={data} times tensor_parallel_size={tensor} must be the "
                f"number of workers, which is {size}."
            )
        self._data_parallel_size, self._tensor_parallel_size = data, tensor


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


# -- a Lightning Trainer of the user's own, inside of a train function -----------------------------


def prepare_trainer(trainer: Any) -> Any:
    """The Lightning Trainer itself, if it is one that can train together with the other workers.

    What would have to be changed is told as a ConfigError.
    """
    package = package_of(type(trainer))
    if package is None or not hasattr(trainer, "strategy"):
        raise ConfigError(f"prepare_trainer() takes a lightning.pytorch.Trainer, not {type(trainer).__name__}.")
    worker_session("prepare_trainer()")
    _check_strategy(trainer.strategy)
    check_accelerator(trainer)
    check_callbacks(trainer.callbacks, package)
    _leave_sigterm_alone(trainer)
    return trainer


def _leave_sigterm_alone(trainer: Any) -> None:
    """Lightning's handler waits until all ranks get the signal: one that gets it alone would hang. The run tells all
    ranks when to save and stop."""
    if is_heard(signal.SIGTERM):
        trainer._signal_connector.register_signal_handlers = _register_none


def _register_none() -> None: ...


def check_ranks(trainer: Any) -> None:
    """For a Trainer that nobody prepared: one that takes its worker for the only one trains a model of its own.

    A strategy of the user's own that knows the ranks may have them from elsewhere.
    """
    session = active()
    if session.world_size == 1:
        return
    if (trainer.world_size, trainer.global_rank) != (session.world_size, session.world_rank):
        _check_strategy(trainer.strategy)


_STRATEGIES = ("DDPStrategy", "FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")


def _check_strategy(strategy: Any) -> None:
    if not isinstance(strategy, WorkerStrategy):
        name = type(strategy).__name__
        right = name if name in _STRATEGIES else _STRATEGIES[0]
        others = [each for each in _STRATEGIES if each != right]
        raise ConfigError(
            f"The Lightning Trainer has the strategy {whose(strategy)}, which does not know the workers: make it with "
            f"Trainer(strategy=paceline.train.lightning.{right}(), "
            "plugins=[paceline.train.lightning.LightningEnvironment()], ...). There are "
            f"{', '.join(others[:-1])} and {others[-1]} too."
        )
    check_environment(strategy)


def check_accelerator(trainer: Any) -> None:
    """A worker computes on the devices that it was given, and Lightning chooses by what the machine has."""
    chosen = type(trainer.accelerator).__name__
    device = trainer.strategy.root_device.type
    if chosen in ("CPUAccelerator", "CUDAAccelerator") and (chosen == "CPUAccelerator") != (device == "cpu"):
        right = "cpu" if device == "cpu" else "gpu"
        raise ConfigError(
            f"The Lightning Trainer has a {chosen}, and this worker was given a {right.upper()}: make it with "
            f"Trainer(accelerator={right!r}, ...), or change ScalingConfig(use_gpu=...)."
        )


def check_callbacks(callbacks: Iterable[Any], package: str) -> None:
    """Saving is done by all ranks together: one that has failed would wait for the others, and they for it."""
    known = lightning(package).callbacks
    for each in callbacks:
        saves_on_exception = isinstance(each, known.ModelCheckpoint) and getattr(each, "save_on_exception", False)
        if saves_on_exception or isinstance(each, known.OnExceptionCheckpoint):
            refuse_saving_on_exception(f"callbacks=[{type(each).__name__}(...)]")


def refuse_saving_on_exception(where: str) -> None:
    raise ConfigError(
        f"{where} would save when a worker fails, which waits for the other workers for ever. A run continues from its "
        "last checkpoint with RunConfig(failure_config=FailureConfig(max_failures=...)); to lose less, save more often "
        "with ModelCheckpoint's every_n_train_steps=...."
    )


def check_checkpoint_io(plugin: Any, package: str) -> None:
    """The run reads a file as soon as Lightning has saved it."""
    if isinstance(plugin, lightning(f"{package}.plugins.io").AsyncCheckpointIO):
        raise ConfigError(
            "AsyncCheckpointIO has not written a checkpoint yet when the run takes it over. Leave it out: "
            "RunConfig(checkpoint_config=CheckpointConfig(async_save=True)) saves in the background."
        )
