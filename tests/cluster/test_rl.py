"""An RLTrainer on a Ray cluster: its env runners are on the nodes that have room for them, and end with its driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")
pytest.importorskip("gymnasium")

import paceline.data
from paceline import tune
from paceline.air import CheckpointConfig, RunConfig, ScalingConfig
from paceline.engine.base import Engine
from paceline.testing.processes import wait_for
from paceline.train.rl import RLTrainer
from paceline.tune import Callback
from tests.cluster.driver import tell
from tests.cluster.ray_hosts import RESULTS, RayHosts
from tests.train.rl.cartpole import QUICK

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


class Look(Callback):
    """Notes what is there while the run is at work."""

    def __init__(self) -> None:
        self.free: list[float] = []
        self.runners: list[int] = []

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.free.append(free_cpus())
        self.runners.append(len(env_runners()))


def free_cpus() -> float:
    import ray

    return float(ray.available_resources().get("CPU", 0.0))


def env_runners() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or [""]
        if command[0].startswith("ray::ReportingEnvRunner"):
            found.append(process)
    return found


def test_env_runners_have_the_room_that_was_reserved_for_them(ray_engine: Engine, tmp_path: Path) -> None:
    others = len(env_runners())
    look = Look()
    result = RLTrainer(
        "PPO",
        config=QUICK,
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 4}),
        run_config=RunConfig(
            engine=ray_engine,
            storage_path=str(tmp_path),
            stop={"training_iteration": 2},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1, num_to_keep=1),
            callbacks=[look],
            verbose=0,
        ),
    ).fit()
    assert result.metrics["training_iteration"] == 2
    # Of two nodes with four CPUs each, the env runner has one for itself; on the other, one CPU learns.
    assert look.free == [3.0, 3.0]
    assert look.runners[0] > others
    assert result.checkpoint is not None
    policy = result.checkpoint.get_policy()  # type: ignore[attr-defined]  # it is an RLCheckpoint
    assert policy.compute_single_action([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    wait_for(lambda: len(env_runners()) <= others, "no env runner", 20)
    wait_for(lambda: free_cpus() == 8.0, "free CPUs", 20)


# On hosts

RUNNER = "ray::ReportingEnvRunner"


class TellRows(Callback):
    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        tell("row", number=result["training_iteration"])


def settings_on_hosts(stop: dict[str, int]) -> dict[str, Any]:
    return {
        "scaling_config": ScalingConfig(num_workers=3, placement_strategy="SPREAD"),
        "run_config": RunConfig(
            name="cartpole",
            storage_path=RESULTS,
            stop=stop,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1, num_to_keep=1),
            callbacks=[TellRows()],
            verbose=0,
        ),
    }


def play_until_killed() -> None:
    RLTrainer("PPO", config=QUICK, **settings_on_hosts({"training_iteration": 10**6})).fit()


def play_on() -> list[int]:
    run_config = settings_on_hosts({"iterations_since_restore": 3})["run_config"]
    result = RLTrainer.restore(f"{RESULTS}/cartpole", trust=True, run_config=run_config).fit()
    assert result.metrics_dataframe is not None
    return [int(number) for number in result.metrics_dataframe["training_iteration"]]


def runners_by_host(ray_hosts: RayHosts) -> dict[str, int]:
    counts = {name: ray_hosts.processes(name).values() for name in ray_hosts.hosts.names}
    return {name: sum(command.startswith(RUNNER) for command in commands) for name, commands in counts.items()}


def test_a_killed_drivers_env_runners_end_on_all_hosts_and_a_restore_continues(ray_hosts: RayHosts) -> None:
    driver = ray_hosts.start_driver("h1", play_until_killed)
    reached = [driver.wait_for("row", 200)["number"] for _ in range(3)][-1]
    found = runners_by_host(ray_hosts)
    assert sum(found.values()) == 3
    assert sum(count > 0 for count in found.values()) >= 2, f"they are spread over the hosts: {found}"
    driver.kill()
    wait_for(lambda: not any(runners_by_host(ray_hosts).values()), "no env runner", 30)
    ray_hosts.wait_until_clean()
    rows = ray_hosts.run_driver("h1", play_on, timeout=200)
    assert len(rows) >= reached + 3
    assert rows == list(range(1, len(rows) + 1)), "a row is missing or twice"


def search_with_rl() -> list[float]:
    """Three trials of two CPUs each have room at the same time."""
    trainer = RLTrainer(
        "PPO",
        config=QUICK,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(stop={"training_iteration": 2}, verbose=0),
    )
    grid = tune.Tuner(trainer, param_space={"config": {"lr": tune.grid_search([1e-4, 1e-3, 1e-2])}}).fit()
    assert not grid.errors, grid.errors
    assert [result.metrics["training_iteration"] for result in grid] == [2, 2, 2]
    return [(result.config or {})["config"]["lr"] for result in grid]


def learn_from_rows() -> int:
    steps = [{"obs": [0.0, 0.0, number / 1000, 0.0], "actions": number % 2} for number in range(1000)]
    result = RLTrainer(
        "BC",
        config={"env": "CartPole-v1", "train_batch_size": 100, "dataset_num_iters_per_learner": 5},
        datasets={"train": paceline.data.from_items(steps)},
        run_config=RunConfig(stop={"training_iteration": 2}, verbose=0),
    ).fit()
    return int(result.metrics["training_iteration"])


def train_and_search() -> dict[str, Any]:
    return {"rates": search_with_rl(), "iterations": learn_from_rows()}


def test_trials_and_recorded_steps_on_hosts(ray_hosts: RayHosts) -> None:
    seen = ray_hosts.run_driver("h1", train_and_search, timeout=280)
    assert seen == {"rates": [1e-4, 1e-3, 1e-2], "iterations": 2}
