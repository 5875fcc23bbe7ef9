"""DDP throughput under paceline. Argument: windows of steps."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import workload
from paceline.train import ScalingConfig
from paceline.train.torch import TorchTrainer


def train_mlp(config: dict[str, Any]) -> None:
    import torch

    from paceline import train
    from paceline.train.torch import prepare_model

    rate = workload.samples_per_second(prepare_model(workload.mlp()), config["windows"])
    train.report({"rate": rate, "threads": torch.get_num_threads()})


def main(windows: int) -> None:
    result = TorchTrainer(
        train_mlp, train_loop_config={"windows": windows}, scaling_config=ScalingConfig(num_workers=2)
    ).fit()
    assert result.metrics is not None
    workload.write_out({"rate": result.metrics["rate"], "threads": result.metrics["threads"]})


if __name__ == "__main__":
    main(int(sys.argv[1]))
