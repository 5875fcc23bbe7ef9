"""Runs that end in any way continue their curve, and leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")

from paceline.air import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import TrainingFailedError
from paceline.testing.processes import wait_for
from paceline.train.rl import RLTrainer
from paceline.tune import Callback
from tests.train.rl.cartpole import PPO, RANDOM_RETURN

if TYPE_CHECKING:
    from paceline.air.result import Result

pytestmark = [pytest.mark.rl, pytest.mark.timeout(300)]

LEARNED = 2.5 * RANDOM_RETURN
"""The first episodes to end after a new start are short ones, so the mean is lower than before for an iteration."""


def settings(place: Path, iterations: int, max_failures: int = 0, callbacks: Any = ()) -> dict[str, Any]:
    return {
        "config": PPO,
        "scaling_config": ScalingConfig(num_workers=2),
        "run_config": RunConfig(
            stop={"training_iteration": iterations},
            storage_path=str(place),
            callbacks=list(callbacks),
            failure_config=FailureConfig(max_failures=max_failures),
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1, num_to_keep=1),
            verbose=0,
        ),
    }


class At(Callback):
    """Does something to the run, once, at the row of an iteration."""

    def __init__(self, iteration: int, action: Any) -> None:
        self.iteration, self.action = iteration, action

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if self.action is not None and result["training_iteration"] == self.iteration:
            action, self.action = self.action, None
            action(result)


def kill_worker(row: Any) -> None:
    os.kill(row["pid"], signal.SIGKILL)


def kill_env_runner(row: Any) -> None:
    runners = [each for each in psutil.Process(row["pid"]).children(recursive=True) if "EnvRunner" in each.name()]
    assert len(runners) == 2
    runners[0].kill()


def kill_raylet(row: Any) -> None:
    (raylet,) = (each for each in psutil.Process(row["pid"]).children(recursive=True) if each.name() == "raylet")
    raylet.kill()


def check_curve(result: Result, after: int) -> None:
    """The iterations after a new start are as good as those before, not like random play.

    An iteration in which no episode ended has no mean. With random weights a hundred episodes would end in it.
    """
    rows = result.metrics_dataframe
    assert list(rows["training_iteration"]) == list(range(1, len(rows) + 1)), "a row is missing or twice"
    means = rows["episode_reward_mean"][after:].dropna()
    assert len(means)
    assert min(means) > LEARNED


@pytest.mark.parametrize("kill", [kill_worker, kill_env_runner, kill_raylet])
def test_retry_after_a_killed_process_continues_the_curve(tmp_path: Path, kill: Any) -> None:
    result = RLTrainer("PPO", **settings(tmp_path, 10, max_failures=1, callbacks=[At(8, kill)])).fit()
    assert len(result.metrics_dataframe) == 10
    check_curve(result, after=8)
    assert result.metrics["timesteps_total"] == pytest.approx(20_000, rel=0.05)


@pytest.mark.parametrize("time", range(3))
def test_restored_run_continues_the_curve(tmp_path: Path, time: int) -> None:
    interrupt = At(8, lambda row: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as caught:
        RLTrainer("PPO", **settings(tmp_path, 10, callbacks=[interrupt])).fit()
    path = caught.value.result.path  # type: ignore[attr-defined]
    reached = len(caught.value.result.metrics_dataframe)  # type: ignore[attr-defined]
    result = RLTrainer.restore(path, trust=True, run_config=settings(tmp_path, 10)["run_config"]).fit()
    assert len(result.metrics_dataframe) == 10
    check_curve(result, after=reached)


@pytest.mark.parametrize("time", range(4))
def test_run_from_the_checkpoint_of_another_continues_its_curve(trained: Result, tmp_path: Path, time: int) -> None:
    result = RLTrainer("PPO", **settings(tmp_path, 2), resume_from_checkpoint=trained.checkpoint).fit()
    check_curve(result, after=0)
    assert result.metrics["timesteps_total"] > trained.metrics["timesteps_total"]


def test_failed_env_runner_without_a_retry_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailedError, match="EnvRunner"):
        RLTrainer("PPO", **settings(tmp_path, 5, callbacks=[At(1, kill_env_runner)])).fit()


# -- no process is left ---------------------------------------------------------------------------

MARK = "PACELINE_TEST_OF_RAY"
DRIVER = """
from paceline.air import RunConfig, ScalingConfig
from paceline.train.rl import RLTrainer
from tests.train.rl.cartpole import QUICK

run_config = RunConfig(stop={"training_iteration": 10**6}, storage_path="results")
RLTrainer("PPO", config=QUICK, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()
"""


def marked(mark: str) -> list[str]:
    """The names of live processes that descend from a driver with this mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.name())
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("way", ["killed", "interrupted"])
def test_no_process_of_ray_survives_the_driver(tmp_path: Path, way: str) -> None:
    mark = str(tmp_path)
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        try:
            assert driver.stdout is not None
            assert any("iteration 1," in line for line in driver.stdout), "it did not train"
            names = marked(mark)
            assert {"raylet", "gcs_server"} <= set(names)
            assert sum("EnvRunner" in name for name in names) == 2
            driver.send_signal(signal.SIGKILL if way == "killed" else signal.SIGINT)
            driver.stdout.read()
            driver.wait()
        finally:
            driver.kill()
    wait_for(lambda: not marked(mark), "all processes to be gone")
    if way == "interrupted":
        assert not list(tmp_path.glob("results/*/*/.rllib"))
