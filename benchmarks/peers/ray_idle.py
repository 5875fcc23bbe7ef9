"""Two Ray torch workers doing nothing. Argument: strays or quiet."""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray import train

from benchmarks import workload
from benchmarks.peers import ray_setup


def train_idle(config: dict[str, Any]) -> None:
    workload.idle(train.get_context().get_world_rank(), config["strays"])


def main(strays: bool) -> None:
    ray_setup.start()
    ray_setup.torch_trainer(train_idle, {"strays": strays}).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] == "strays")
