"""Rows of an RLTrainer: RLlib's names, and the older ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")
pytestmark = pytest.mark.rl


def result_of_rllib(**runners: Any) -> dict[str, Any]:
    return {
        "config": {"lr": 1},
        "hostname": "h",
        "training_iteration": 3,
        "num_env_steps_sampled_lifetime": 600,
        "env_runners": {"num_episodes": 4, "num_episodes_lifetime": 12, "env_step_timer": 0.1, **runners},
        "learners": {"default_policy": {"policy_loss": 0.5, "learner_connector": {"timers": {}}}},
        "timers": {"training_step": 0.2, "learner_update_timer": 0.1},
    }


def test_episodes_have_the_names_of_all_generations() -> None:
    from paceline.train.rl.loop import row_of

    row = row_of(result_of_rllib(episode_return_mean=7.0, episode_return_max=9.0, episode_len_mean=5.0))
    assert row["episode_reward_mean"] == row["env_runners"]["episode_return_mean"] == 7.0
    assert row["episode_reward_max"] == 9.0
    assert row["episode_len_mean"] == 5.0
    assert (row["episodes_this_iter"], row["episodes_total"], row["timesteps_total"]) == (4, 12, 600)
    assert row["learners"]["default_policy"]["policy_loss"] == 0.5


def test_what_the_run_knows_itself_and_details_are_left_out() -> None:
    from paceline.train.rl.loop import row_of

    row = row_of(result_of_rllib())
    assert not {"config", "hostname", "training_iteration"} & set(row)
    assert "env_step_timer" not in row["env_runners"]
    assert row["learners"]["default_policy"] == {"policy_loss": 0.5}
    assert row["timers"] == {"training_step": 0.2, "learner_update_timer": 0.1}


def test_before_an_episode_has_ended_its_return_is_nan() -> None:
    """So that a stop criterion waits for it instead of taking it for a slip."""
    from paceline.train.rl.loop import row_of

    row = row_of(result_of_rllib())
    assert math.isnan(row["episode_reward_mean"])
    assert math.isnan(row["env_runners"]["episode_return_mean"])


def test_evaluation_has_them_too() -> None:
    from paceline.train.rl.loop import row_of

    row = row_of({**result_of_rllib(), "evaluation": {"env_runners": {"episode_return_mean": 3.0}}})
    assert row["evaluation"]["episode_reward_mean"] == 3.0
    assert row["evaluation"]["env_runners"]["episode_return_mean"] == 3.0
