"""Algorithms learn, and what they learned can be used, stored, served and continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")

from paceline import data, serve
from paceline.air import RunConfig
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.rl import RLPredictor, RLTrainer
from tests.train.rl.cartpole import mean_return

if TYPE_CHECKING:
    from paceline.air.result import Result

pytestmark = [pytest.mark.rl, pytest.mark.timeout(300)]


def test_ppo_reaches_150_within_30_iterations(trained: Result) -> None:
    assert trained.metrics["episode_reward_mean"] >= 150
    assert trained.metrics["training_iteration"] <= 30
    print(f"{trained.metrics['training_iteration']} iterations in {trained.metrics['time_total_s']:.0f} s")


def test_dqn_learns(tmp_path: Path) -> None:
    config = {
        "env": "CartPole-v1",
        "lr": 5e-4,
        "train_batch_size": 32,
        "target_network_update_freq": 500,
        "exploration_config": {"type": "EpsilonGreedy", "epsilon_timesteps": 5000, "final_epsilon": 0.02},
        "learning_starts": 1000,
        "n_step": 1,
        "seed": 1,
    }
    stop = {"episode_reward_mean": 100, "timesteps_total": 40_000}
    result = RLTrainer(
        "DQN", config=config, run_config=RunConfig(stop=stop, storage_path=str(tmp_path), verbose=0)
    ).fit()
    assert result.metrics["episode_reward_mean"] >= 100
    assert result.checkpoint is not None
    policy = result.checkpoint.get_policy()  # type: ignore[attr-defined]
    assert mean_return(policy.compute_single_action) >= 100


def demonstrations(episodes: int) -> tuple[list[dict[str, Any]], float]:
    """Steps of a rule that keeps the pole up, and the mean return of the rule."""
    import gymnasium

    def rule(observation: np.ndarray) -> int:
        return int(3 * observation[2] + observation[3] > 0)

    env, rows = gymnasium.make("CartPole-v1"), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        over = False
        while not over:
            action = rule(observation)
            rows.append({"eps_id": episode, "obs": observation, "actions": action})
            observation, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
    env.close()
    return rows, mean_return(rule)


def test_bc_learns_from_a_dataset_what_the_demonstrator_does(tmp_path: Path) -> None:
    rows, demonstrated = demonstrations(40)
    result = RLTrainer(
        "BC",
        config={"env": "CartPole-v1", "lr": 1e-3, "train_batch_size": 512, "seed": 1},
        datasets={"train": data.from_items(rows)},
        run_config=RunConfig(stop={"training_iteration": 10}, storage_path=str(tmp_path), verbose=0),
    ).fit()
    policy = result.checkpoint.get_policy()  # type: ignore[union-attr]
    assert demonstrated > 400
    assert mean_return(policy.compute_single_action) >= 0.9 * demonstrated


def test_interrupted_bc_continues(tmp_path: Path) -> None:
    rows, _ = demonstrations(2)
    config = {"env": "CartPole-v1", "train_batch_size": 64, "seed": 1}
    arguments: dict[str, Any] = {"config": config, "datasets": {"train": data.from_items(rows)}}
    run_config = RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0)
    first = RLTrainer("BC", **arguments, run_config=run_config).fit()
    second = RLTrainer("BC", **arguments, run_config=run_config, resume_from_checkpoint=first.checkpoint).fit()
    losses = [each.metrics["learners"]["default_policy"]["total_loss"] for each in (first, second)]
    assert losses[1] < losses[0]


# -- using what was learned -----------------------------------------------------------------------


def test_policy_of_the_checkpoint_plays_as_well(trained: Result) -> None:
    policy = trained.checkpoint.get_policy()  # type: ignore[union-attr]
    assert mean_return(policy.compute_single_action) >= 120


def test_served_policy_plays_as_well(trained: Result) -> None:
    import http.client
    from urllib.parse import urlsplit

    server: Any = serve.run(trained.checkpoint, trust=True, port=0, blocking=False)
    try:
        place = urlsplit(server.url)
        connection = http.client.HTTPConnection(str(place.hostname), int(place.port or 0))
        headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}

        def act(observation: np.ndarray) -> int:
            body = json.dumps({"rows": [{"obs": observation.tolist()}]})
            connection.request("POST", "/predict", body, headers)
            answer = json.loads(connection.getresponse().read())
            return int(answer["predictions"][0])

        assert mean_return(act) >= 120
        connection.close()
    finally:
        server.stop()


def test_dataset_of_observations_is_predicted(trained: Result) -> None:
    rng = np.random.default_rng(0)
    observations = rng.uniform(-0.2, 0.2, (500, 4)).astype(np.float32)
    rows = data.from_items([{"obs": row, "number": number} for number, row in enumerate(observations)])
    predictor = BatchPredictor.from_checkpoint(trained.checkpoint, RLPredictor)
    answered = predictor.predict(rows, feature_columns=["obs"], keep_columns=["number"]).to_pandas()
    expected = trained.checkpoint.get_policy().compute_actions(observations)  # type: ignore[union-attr]
    assert answered.sort_values("number")["predictions"].tolist() == expected.tolist()
