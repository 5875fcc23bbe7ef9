"""paceline's short trials, 2 at a time. Arguments: noop, noop-optuna or torch; how many trials.

What counts is a whole `Tuner.fit()` with default logging, in a driver that has done one before.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import workload
from paceline import tune

SPACE = {"lr": tune.loguniform(1e-4, 1e-1), "momentum": tune.uniform(0.0, 1.0)}


def train_nothing(config: dict[str, Any]) -> None:
    tune.report({"loss": config["lr"] * config["momentum"]})


def train_torch(config: dict[str, Any]) -> None:
    from paceline import train
    from paceline.train.torch import prepare_model

    train.report({"loss": workload.few_steps(prepare_model(workload.small_model()))})


def tuner(kind: str, trials: int) -> tune.Tuner:
    tune_config = tune.TuneConfig(num_samples=trials, max_concurrent_trials=2, metric="loss", mode="min")
    if kind == "torch":
        from paceline.train import ScalingConfig
        from paceline.train.torch import TorchTrainer

        trainer = TorchTrainer(train_torch, scaling_config=ScalingConfig(num_workers=1))
        return tune.Tuner(trainer, param_space={"train_loop_config": SPACE}, tune_config=tune_config)
    if kind == "noop-optuna":
        from paceline.tune.search.optuna import OptunaSearch

        tune_config.search_alg = OptunaSearch()
    return tune.Tuner(train_nothing, param_space=SPACE, tune_config=tune_config)


def main(kind: str, trials: int) -> None:
    tuner(kind, 1).fit()
    started = time.perf_counter()
    results = tuner(kind, trials).fit()
    seconds = time.perf_counter() - started
    complete = sum("loss" in result.metrics for result in results) == trials
    workload.write_out({"rate": trials / seconds, "complete": complete})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
