"""Ray's report rate. Arguments: workers, and how many reports."""

from __future__ import annotations

import sys
import time
from typing import Any

import ray
from ray import train

from benchmarks import workload
from benchmarks.peers import ray_setup


def train_reports(config: dict[str, Any]) -> None:
    for step in range(config["reports"]):
        train.report({"step": step, "loss": 1.0 / (step + 1), "accuracy": 0.5, "lr": 0.01, "samples": step * 64})


def main(workers: int, reports: int) -> None:
    ray_setup.start()
    seconds = []
    for count in (1, 1, reports):  # the first fit also warms Ray up and does not count
        trainer = ray_setup.plain_trainer(train_reports, {"reports": count}, workers)
        started = time.perf_counter()
        trainer.fit()
        seconds.append(time.perf_counter() - started)
    ray.shutdown()
    workload.write_out({"rate": (reports - 1) / (seconds[2] - seconds[1]), "fits": seconds})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
