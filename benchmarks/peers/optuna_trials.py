"""Optuna calls a function in its own process. Arguments: tpe or random, and how many trials."""

from __future__ import annotations

import sys
import time

import optuna

from benchmarks import workload


def objective(trial: optuna.Trial) -> float:
    return trial.suggest_float("lr", 1e-4, 1e-1, log=True) * trial.suggest_float("momentum", 0.0, 1.0)


def main(sampler: str, trials: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for count in (2, trials):  # the first also loads what Optuna loads late, and does not count
        chosen = optuna.samplers.TPESampler() if sampler == "tpe" else optuna.samplers.RandomSampler()
        study = optuna.create_study(sampler=chosen)
        started = time.perf_counter()
        study.optimize(objective, n_trials=count)
        seconds = time.perf_counter() - started
    workload.write_out({"rate": trials / seconds, "complete": len(study.trials) == trials})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
