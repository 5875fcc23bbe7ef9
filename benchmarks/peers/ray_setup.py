"""What every Ray script needs: a Ray of its own that can hold two workers on any machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import ray
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2._internal.constants import is_v2_enabled

from benchmarks import workload


def start() -> None:
    """Two workers, the trainer's own bundle, and one to spare."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)


def configs(num_workers: int = 2, max_failures: int = 0) -> dict[str, Any]:
    return {
        "scaling_config": ScalingConfig(num_workers=num_workers),
        "run_config": RunConfig(
            storage_path=str(workload.place() / "results"),
            failure_config=FailureConfig(max_failures=max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    }


def plain_trainer(train: Callable[[dict[str, Any]], None], config: dict[str, Any], num_workers: int) -> Any:
    """A trainer without a framework, of whichever generation RAY_TRAIN_V2_ENABLED selects."""
    generation = "ray.train.v2.api" if is_v2_enabled() else "ray.train"
    trainer_class = importlib.import_module(f"{generation}.data_parallel_trainer").DataParallelTrainer
    return trainer_class(train, train_loop_config=config, **configs(num_workers))


def torch_trainer(
    train: Callable[[dict[str, Any]], None], config: dict[str, Any], max_failures: int = 0, num_workers: int = 2
) -> Any:
    from ray.train.torch import TorchTrainer

    return TorchTrainer(train, train_loop_config=config, **configs(num_workers, max_failures))
