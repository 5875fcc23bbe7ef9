"""Ray Train and Ray Tune on a Ray cluster that is up. Arguments: what is measured, and how many."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import train, tune
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from benchmarks import cluster_workload, workload


def train_ddp(config: dict[str, Any]) -> None:
    from ray.train.torch import prepare_model

    train.report({"loss": workload.few_steps(prepare_model(workload.small_model()))})


def train_reports(config: dict[str, Any]) -> None:
    for step in range(config["reports"]):
        train.report({"step": step, "loss": 1.0 / (step + 1), "accuracy": 0.5, "lr": 0.01, "samples": step * 64})


def train_and_die(config: dict[str, Any]) -> None:
    rank, place = train.get_context().get_world_rank(), Path(config["place"])
    cluster_workload.kill_one_rank_once(rank, place, config["round"])


def train_until_killed(config: dict[str, Any]) -> None:
    cluster_workload.work_until_a_host_is_killed(train.get_context().get_world_rank(), Path(config["place"]))


def train_idle(config: dict[str, Any]) -> None:
    cluster_workload.idle(train.get_context().get_world_rank(), Path(config["place"]))


def train_mlp(config: dict[str, Any]) -> None:
    import torch
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)
    rate = workload.samples_per_second(prepare_model(workload.mlp()), config["windows"])
    if train.get_context().get_world_rank() == 0:  # Without a checkpoint, Ray's result has no metrics.
        (Path(config["place"]) / "rate").write_text(str(rate))
    train.report({"rate": rate})


def train_nothing(config: dict[str, Any]) -> None:
    tune.report({"loss": config["lr"] * config["momentum"]})


def configs(max_failures: int = 0) -> dict[str, Any]:
    return {
        "scaling_config": ScalingConfig(
            num_workers=cluster_workload.WORKERS,
            resources_per_worker=cluster_workload.RESOURCES,
            placement_strategy=cluster_workload.STRATEGY,
        ),
        "run_config": RunConfig(
            storage_path=str(workload.place() / "results"), failure_config=FailureConfig(max_failures=max_failures)
        ),
    }


def torch_fit(loop: Callable[[dict[str, Any]], None], config: dict[str, Any], max_failures: int = 0) -> Any:
    config = {**config, "place": str(workload.place())}  # Workers elsewhere do not have our variables.
    return TorchTrainer(loop, train_loop_config=config, **configs(max_failures)).fit()


def timed(fit: Callable[[], Any]) -> float:
    started = time.perf_counter()
    fit()
    return time.perf_counter() - started


def fits(count: int) -> dict[str, Any]:
    return {"fits": [timed(lambda: torch_fit(train_ddp, {})) for _ in range(count)]}


def reports(count: int) -> dict[str, Any]:
    seconds = [  # the first fit also warms Ray up and does not count
        timed(DataParallelTrainer(train_reports, train_loop_config={"reports": each}, **configs()).fit)
        for each in (1, 1, count)
    ]
    return {"rate": (count - 1) / (seconds[2] - seconds[1])}


def trials(count: int) -> dict[str, Any]:
    tuner(2).fit()  # warms Ray up and does not count
    started = time.perf_counter()
    results = tuner(count).fit()
    seconds = time.perf_counter() - started
    complete = all("loss" in (results[number].metrics or {}) for number in range(count))
    return {"rate": count / seconds, "complete": complete}


def tuner(count: int) -> tune.Tuner:
    return tune.Tuner(
        tune.with_resources(train_nothing, cluster_workload.TRIAL_RESOURCES),
        param_space={"lr": tune.loguniform(1e-4, 1e-1), "momentum": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(
            num_samples=count, max_concurrent_trials=cluster_workload.TRIALS_AT_ONCE, metric="loss", mode="min"
        ),
        run_config=tune.RunConfig(storage_path=str(workload.place() / "results")),
    )


def restarts(count: int) -> dict[str, Any]:
    for number in range(count):
        torch_fit(train_and_die, {"round": number}, max_failures=1)
    return {}


def host_killed(_: int) -> dict[str, Any]:
    torch_fit(train_until_killed, {}, max_failures=3)
    return {}


def idle(_: int) -> dict[str, Any]:
    torch_fit(train_ddp, {})
    cluster_workload.stamp(workload.place(), "between-fits")
    cluster_workload.wait_for_stamp(workload.place(), "seen")
    torch_fit(train_idle, {})
    return {}


def ddp(windows: int) -> dict[str, Any]:
    torch_fit(train_mlp, {"windows": windows})
    return {"rate": float((workload.place() / "rate").read_text())}


MEASURES: dict[str, Callable[[int], dict[str, Any]]] = {
    "fits": fits,
    "reports": reports,
    "trials": trials,
    "restarts": restarts,
    "host-killed": host_killed,
    "idle": idle,
    "ddp": ddp,
}

if __name__ == "__main__":
    ray.init(address=cluster_workload.address(), log_to_driver=False)
    figures = MEASURES[sys.argv[1]](int(sys.argv[2]))
    ray.shutdown()
    workload.write_out(figures)
