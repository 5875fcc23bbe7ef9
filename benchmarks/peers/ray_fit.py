"""Ray fits one after the other in one driver. Arguments: torch or plain, and how many."""

from __future__ import annotations

import sys
import time
from typing import Any

import ray
from ray import train

from benchmarks import workload
from benchmarks.peers import ray_setup


def train_torch(config: dict[str, Any]) -> None:
    from ray.train.torch import prepare_model

    train.report({"loss": workload.few_steps(prepare_model(workload.small_model()))})


def train_plain(config: dict[str, Any]) -> None:
    train.report({"loss": 1.0})


def main(kind: str, fits: int) -> None:
    ray_setup.start()
    seconds = []
    for _ in range(fits):
        if kind == "torch":
            trainer = ray_setup.torch_trainer(train_torch, {})
        else:
            trainer = ray_setup.plain_trainer(train_plain, {}, 2)
        started = time.perf_counter()
        trainer.fit()
        seconds.append(time.perf_counter() - started)
    ray.shutdown()
    workload.write_out({"fits": seconds})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
