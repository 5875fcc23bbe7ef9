"""Ray Tune's short trials, 2 at a time. Arguments: noop or torch, and how many trials."""

from __future__ import annotations

import sys
import time
from typing import Any

import ray
from ray import tune

from benchmarks import workload
from benchmarks.peers import ray_setup

SPACE = {"lr": tune.loguniform(1e-4, 1e-1), "momentum": tune.uniform(0.0, 1.0)}


def train_nothing(config: dict[str, Any]) -> None:
    tune.report({"loss": config["lr"] * config["momentum"]})


def train_torch(config: dict[str, Any]) -> None:
    from ray import train
    from ray.train.torch import prepare_model

    train.report({"loss": workload.few_steps(prepare_model(workload.small_model()))})


def tuner(kind: str, trials: int) -> tune.Tuner:
    common: dict[str, Any] = {
        "tune_config": tune.TuneConfig(num_samples=trials, max_concurrent_trials=2, metric="loss", mode="min"),
        "run_config": tune.RunConfig(storage_path=str(workload.place() / "results")),
    }
    if kind == "noop":
        return tune.Tuner(train_nothing, param_space=SPACE, **common)
    trainer = ray_setup.torch_trainer(train_torch, {}, num_workers=1)
    return tune.Tuner(trainer, param_space={"train_loop_config": SPACE}, **common)


def main(kind: str, trials: int) -> None:
    ray_setup.start()
    tuner(kind, 1).fit()  # warms Ray up and does not count
    started = time.perf_counter()
    results = tuner(kind, trials).fit()
    seconds = time.perf_counter() - started
    complete = all("loss" in (results[number].metrics or {}) for number in range(trials))
    ray.shutdown()
    workload.write_out({"rate": trials / seconds, "complete": complete})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
