"""Workers of paceline that do nothing. Arguments: torch, torch-in-driver or plain; strays or quiet; workers."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import workload


def train_idle(config: dict[str, Any]) -> None:
    from paceline import train

    workload.idle(train.get_context().get_world_rank(), config["strays"])


def main(kind: str, strays: bool, workers: int) -> None:
    if kind == "torch-in-driver":
        import torch  # noqa: F401
    from paceline.train import DataParallelTrainer, ScalingConfig

    trainer_class: type[DataParallelTrainer] = DataParallelTrainer
    if kind != "plain":
        from paceline.train.torch import TorchTrainer

        trainer_class = TorchTrainer
    trainer = trainer_class(
        train_idle, train_loop_config={"strays": strays}, scaling_config=ScalingConfig(num_workers=workers)
    )
    trainer.fit()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "strays", int(sys.argv[3]))
