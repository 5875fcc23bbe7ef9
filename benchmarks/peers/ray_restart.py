"""One rank dies under Ray with one retry."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray import train

from benchmarks import workload
from benchmarks.peers import ray_setup


def train_and_die(config: dict[str, Any]) -> None:
    first_line = time.monotonic()
    workload.kill_one_rank_once(train.get_context().get_world_rank(), 0, first_line)


def main() -> None:
    ray_setup.start()
    ray_setup.torch_trainer(train_and_die, {}, max_failures=1).fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
