"""TorchTrainer: a data-parallel trainer whose workers share a PyTorch process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.train.chosen_config import chosen_config
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.torch.config import TorchConfig

if TYPE_CHECKING:
    import os

    from paceline.air.checkpoint import Checkpoint
    from paceline.air.config import DataConfig, DatasetConfig, RunConfig, ScalingConfig


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
        scaling_config: ScalingConfig | None = None,
        dataset_config: Mapping[str, DatasetConfig] | DataConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        preprocessor: Any = None,
        resume_from_checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        chosen = chosen_config("TorchTrainer", TorchConfig, torch_config=torch_config, torch_backend=torch_backend)
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=chosen,
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
            metadata=metadata,
        )
