"""paceline fits one after the other in one driver.

Arguments: torch, torch-in-driver (the script itself imports torch, as most do) or plain; and how many.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import workload


def train_torch(config: dict[str, Any]) -> None:
    from paceline import train
    from paceline.train.torch import prepare_model

    train.report({"loss": workload.few_steps(prepare_model(workload.small_model()))})


def train_plain(config: dict[str, Any]) -> None:
    from paceline import train

    train.report({"loss": 1.0})


def trainer(kind: str) -> Any:
    from paceline.train import ScalingConfig

    if kind == "plain":
        from paceline.train import DataParallelTrainer

        return DataParallelTrainer(train_plain, scaling_config=ScalingConfig(num_workers=2))
    from paceline.train.torch import TorchTrainer

    return TorchTrainer(train_torch, scaling_config=ScalingConfig(num_workers=2))


def main(kind: str, fits: int) -> None:
    if kind == "torch-in-driver":
        import torch  # noqa: F401
    seconds = []
    for _ in range(fits):
        started = time.perf_counter()
        trainer(kind).fit()
        seconds.append(time.perf_counter() - started)
    workload.write_out({"fits": seconds})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
