"""HorovodTrainer: a data-parallel trainer whose workers are connected by Horovod."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

from paceline.run.spec import TrainFunction
from paceline.train.arguments import DataParallelArguments, chosen_config, config_as
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.horovod.backend import HorovodConfig, HorovodTorchConfig, leave_horovod
from paceline.train.imports import referred_modules


@dataclass(frozen=True)
class HorovodFunction(TrainFunction):
    """The user's function. A rank that returns leaves at once, as a process that ends under `horovodrun` does: one that
    still waits for it in a collective operation gets an error instead of waiting for ever."""

    def __call__(self) -> None:
        super().__call__()
        leave_horovod()


class HorovodTrainer(DataParallelTrainer):
    """Runs `train_loop_per_worker` on every worker, where `hvd.init()` connects it with the others.

    A function that runs under `horovodrun` runs here as it is, with `horovod.torch` or `horovod.tensorflow`.

        def train_func(config):
            hvd.init()
            model = torch.nn.Linear(4, 1)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=config["lr"]))
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            ...
            paceline.train.report({"loss": loss.item()})

        result = HorovodTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
    """

    _function_class: ClassVar[type[TrainFunction]] = HorovodFunction

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        horovod_config: HorovodConfig | None = None,
        horovod_backend: HorovodConfig | None = None,
        tensorflow_backend: HorovodConfig | None = None,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        chosen = chosen_config(
            "HorovodTrainer",
            HorovodConfig,
            horovod_config=horovod_config,
            horovod_backend=horovod_backend,
            tensorflow_backend=tensorflow_backend,
        )
        if type(chosen) is HorovodConfig and uses_only_torch(train_loop_per_worker, train_loop_config):
            chosen = config_as(HorovodTorchConfig, chosen)
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=chosen,
            **common,
        )


# -- which framework a train function uses ---------------------------------------------------------


_TORCH = ("torch", "horovod.torch")
_TENSORFLOW = ("tensorflow", "keras", "tf_keras", "horovod.tensorflow", "horovod.keras")


def uses_only_torch(*values: Any) -> bool:
    """True if the functions and other values refer to PyTorch and not to TensorFlow. A function that hides what it uses
    is not taken for one that does."""
    names = referred_modules(*values)
    return _refers(names, _TORCH) and not _refers(names, _TENSORFLOW)


def _refers(names: set[str], modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in names for module in modules)
