"""Ray Tune's rate of results. Arguments: trials at once, reports of each."""

from __future__ import annotations

import sys
import time
from typing import Any

import ray
from ray import tune

from benchmarks import workload
from benchmarks.peers import ray_setup


def train_reports(config: dict[str, Any]) -> None:
    for step in range(config["reports"]):
        tune.report({"step": step, "loss": 1.0 / (step + 1), "accuracy": 0.5, "lr": 0.01, "samples": step * 64})


def main(trials: int, reports: int) -> None:
    ray_setup.start()
    seconds = []
    for count in (1, 1, reports):  # the first fit also warms Ray up and does not count
        tuner = tune.Tuner(
            train_reports,
            param_space={"reports": count},
            tune_config=tune.TuneConfig(num_samples=trials, metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=str(workload.place() / "results")),
        )
        started = time.perf_counter()
        results = tuner.fit()
        seconds.append(time.perf_counter() - started)
    complete = all((results[number].metrics or {})["step"] == reports - 1 for number in range(trials))
    ray.shutdown()
    workload.write_out({"rate": trials * (reports - 1) / (seconds[2] - seconds[1]), "complete": complete})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
