"""One rank dies under paceline with one retry. Argument: how many such fits."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import workload
from paceline.train import FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer


def train_and_die(config: dict[str, Any]) -> None:
    first_line = time.monotonic()
    from paceline import train

    workload.kill_one_rank_once(train.get_context().get_world_rank(), config["round"], first_line)


def main(rounds: int) -> None:
    for number in range(rounds):
        TorchTrainer(
            train_and_die,
            train_loop_config={"round": number},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(failure_config=FailureConfig(max_failures=1)),
        ).fit()


if __name__ == "__main__":
    main(int(sys.argv[1]))
