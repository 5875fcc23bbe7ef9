"""The rows of reinforcement learning compare the same work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")

from benchmarks import rl, rl_workload
from benchmarks.harness import Bench, MeasureError
from paceline.train.rl import backend
from tests.train.rl.cartpole import PPO

pytestmark = pytest.mark.rl


def test_the_settings_are_those_of_the_tests() -> None:
    assert rl_workload.SETTINGS == PPO


@pytest.mark.parametrize("env_runners", [0, 2])
def test_both_sides_have_the_same_config(env_runners: int) -> None:
    from benchmarks.ours.rl_iterations import Clock, trainer
    from paceline.train.rl import rllib  # noqa: F401  (before anything of ray.rllib)
    from paceline.train.rl.env_runners import with_reporting_runners
    from paceline.train.rl.loop import RLLoop

    loop = trainer(env_runners, 1, Clock()).to_run_spec().train
    assert isinstance(loop, RLLoop)
    ours: dict[str, Any] = with_reporting_runners(loop.config.copy(copy_frozen=False)).to_dict()
    theirs: dict[str, Any] = rl_workload.rllib_config(env_runners).to_dict()
    assert ours.keys() == theirs.keys()
    differing = {name for name in ours if ours[name] != theirs[name]}
    assert differing == {"env_runner_cls", "restart_failed_env_runners"}  # how failures are reported


def test_both_sides_play_the_same_episodes() -> None:
    # The temporary directory of a test is too deep for Ray's sockets.
    with backend.socket_directory() as sockets, Bench(quick=True, with_ray=True) as bench:
        alone = {**rl.NO_OTHER_FRAMEWORKS, "RAY_TMPDIR": sockets}
        ours = rl.train(bench, "ours", env_runners=0, iterations=2)
        theirs = rl.train(bench, "alone", env_runners=0, iterations=2, env=alone)
    assert ours.iteration > 0
    assert ours.first > ours.iteration
    rl.check_same_work(ours, theirs)
    with pytest.raises(MeasureError, match="not the same work"):
        rl.check_same_work(ours, replace(theirs, returns=theirs.returns[::-1]))
