"""Env runners play with the learner's weights after a restore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")
pytestmark = pytest.mark.rl


@pytest.fixture(scope="module")
def algorithm(ray_here: None) -> Iterator[Any]:
    from paceline.train.rl.config import algorithm_class, algorithm_config
    from paceline.train.rl.loop import built
    from tests.train.rl.cartpole import QUICK

    config = algorithm_config(algorithm_class("PPO"), {**QUICK, "num_workers": 2})
    with built(config) as algorithm:
        algorithm.train()  # weights have a number from then on
        yield algorithm


def first_weight(runner: Any) -> float:
    return float(next(iter(runner.module.state_dict().values())).flatten()[0])


def spoil(runner: Any) -> None:
    """What a restore may leave: other weights, under the number of the right ones."""
    import torch

    with torch.no_grad():
        for parameter in runner.module.parameters():
            parameter.add_(1.0)
    runner._weights_seq_no = 10**6


def test_runners_that_would_ignore_the_weights_have_them_afterwards(algorithm: Any) -> None:
    from paceline.train.rl.loop import hand_out_weights

    group = algorithm.env_runner_group
    right = group.foreach_env_runner(first_weight, local_env_runner=False)
    assert len(right) == 2
    group.foreach_env_runner(spoil, local_env_runner=False)
    group.sync_weights(from_worker_or_learner_group=algorithm.learner_group, timeout_seconds=60, inference_only=True)
    wrong = group.foreach_env_runner(first_weight, local_env_runner=False)
    assert wrong == pytest.approx([value + 1 for value in right]), "RLlib's own way is enough by now"
    hand_out_weights(algorithm)
    assert group.foreach_env_runner(first_weight, local_env_runner=False) == right


def test_only_this_user_can_enter_the_directory_of_ray(ray_here: None) -> None:
    from paceline.train.rl import backend

    sockets = backend.Places.here().sockets
    assert sockets is not None
    place = Path(sockets)
    assert place.stat().st_mode & 0o777 == 0o700
    assert any(place.glob("r/session_*/sockets/raylet"))


def test_weights_that_cannot_be_handed_out_are_an_error(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.air.errors import CheckpointError
    from paceline.train.rl import loop

    algorithm.env_runner_group.foreach_env_runner(spoil, local_env_runner=False)
    monkeypatch.setattr(loop, "_set_state", lambda reference, runner: None)
    with pytest.raises(CheckpointError, match="2 env runners"):
        loop.hand_out_weights(algorithm)
