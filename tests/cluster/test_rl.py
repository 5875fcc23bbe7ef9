"""An RLTrainer on a Ray cluster: its env runners are on the nodes that have room for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")
pytest.importorskip("gymnasium")

from paceline.air import CheckpointConfig, RunConfig, ScalingConfig
from paceline.engine.base import Engine
from paceline.testing.processes import wait_for
from paceline.train.rl import RLTrainer
from paceline.tune import Callback
from tests.train.rl.cartpole import QUICK

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


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
