"""TorchTrainer: a data-parallel trainer whose workers share a PyTorch process group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from paceline.train.arguments import DataParallelArguments, chosen_config
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.torch.backend import TorchConfig


class TorchTrainer(DataParallelTrainer):
    """Runs `train_loop_per_worker` on every worker, inside a process group that is ready to use.

    Use `prepare_model` and `prepare_data_loader` in the function, or plain `torch.distributed`.

        def train_func(config):
            model = paceline.train.torch.prepare_model(torch.nn.Linear(4, 1))
            ...
            paceline.train.report({"loss": loss.item()})

        result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        torch_backend: TorchConfig | None = None,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        chosen = chosen_config("TorchTrainer", TorchConfig, torch_config=torch_config, torch_backend=torch_backend)
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=chosen,
            **common,
        )
