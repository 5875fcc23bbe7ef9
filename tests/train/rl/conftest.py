"""What tests with RLlib share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.train.rl.cartpole import PPO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.air.result import Result


ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """PPO with two env runners until it reaches 150 on CartPole, or for 30 iterations."""
    from paceline.air import CheckpointConfig, RunConfig, ScalingConfig
    from paceline.train.rl import RLTrainer

    return RLTrainer(
        "PPO",
        config=PPO,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            stop={"episode_reward_mean": 150, "training_iteration": 30},
            storage_path=str(tmp_path_factory.mktemp("trained")),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            verbose=0,
        ),
    ).fit()


@pytest.fixture(scope="module")
def ray_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray of the test process, for tests that build algorithms themselves."""
    import torch

    from paceline.train.rl import backend

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with backend.socket_directory() as sockets:
        backend.prepare(sockets, str(tmp_path_factory.mktemp("scratch")))
        with backend.started(cpus=4):
            yield
    backend.Places.end()
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def saved_runs(own_directories: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of RLlib's checkpoints, by names of small_runs.RUNS. Another process makes them: it needs Ray."""
    place = tmp_path_factory.mktemp("saved_runs")
    imports = "from paceline.train.rl import rllib; from tests.train.rl import small_runs"
    script = f"{imports}; small_runs.save_all({str(place)!r})"
    made = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert made.returncode == 0, made.stderr
    return place
