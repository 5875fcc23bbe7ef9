"""BC, MARWIL and CQL learn from paceline datasets, without Ray Data."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")
pytest.importorskip("paceline.train.rl.rllib")  # before anything of ray.rllib

import gymnasium as gym
import ray
from ray.rllib.algorithms.bc import BC, BCConfig
from ray.rllib.algorithms.cql import CQLConfig
from ray.rllib.algorithms.marwil import MARWIL, MARWILConfig

import paceline.data as data
from paceline.train.rl.offline import restore, with_dataset
from paceline.train.rl.rllib import WITHOUT_OTHER_FRAMEWORKS

pytestmark = pytest.mark.rl

Row = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def one_cpu() -> Iterator[None]:
    """RLlib's own reader would wait forever for a second CPU, and a third."""
    # The paths of Ray's sockets may have 107 characters, which pytest's own directories use up.
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="rl", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)  # torch would set it, and leave it behind
        for name, value in WITHOUT_OTHER_FRAMEWORKS.items():
            patch.setenv(name, value)
        quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        ray.init(address="local", num_cpus=1, _temp_dir=folder, **quiet)
        yield
        ray.shutdown()


def record(env: str, act: Callable[[Any], Any], episodes: int, seed: int = 0) -> list[Row]:
    """Play episodes and write every step down."""
    rows: list[Row] = []
    world = gym.make(env)
    for episode in range(seed, seed + episodes):
        obs, _ = world.reset(seed=episode)
        t, over = 0, False
        while not over:
            action = act(obs)
            after, reward, terminated, truncated, _ = world.step(action)
            step = {"obs": obs, "actions": action, "rewards": float(reward), "new_obs": after}
            rows.append({"eps_id": episode, "t": t, **step, "terminateds": terminated, "truncateds": truncated})
            obs, t, over = after, t + 1, terminated or truncated
    world.close()
    return rows


def mean_return(rows: list[Row]) -> float:
    return sum(row["rewards"] for row in rows) / len({row["eps_id"] for row in rows})


def balance(obs: Any) -> int:
    """Push the cart to where the pole falls."""
    return int(3 * obs[2] + obs[3] > 0)


def at_random(seed: int) -> Callable[[Any], int]:
    numbers = np.random.default_rng(seed)
    return lambda obs: int(numbers.integers(2))


def of_module(algorithm: Any) -> Callable[[Any], int]:
    """How the learner's module plays."""
    import torch

    module = algorithm.learner_group._learner.module["default_policy"]

    def act(obs: Any) -> int:
        with torch.no_grad():
            out = module.forward_inference({"obs": torch.as_tensor(obs)[None]})
        return int(out["action_dist_inputs"][0].argmax())

    return act


def build(config: Any, rows: list[Row], seed: int = 1, **offline: Any) -> Any:
    config = config.learners(num_learners=0).debugging(seed=seed).offline_data(**offline)
    return with_dataset(config, data.from_items(rows)).build_algo()


@pytest.fixture(scope="module")
def demonstrations() -> list[Row]:
    return record("CartPole-v1", balance, 100)


def test_bc_plays_like_the_demonstrator(demonstrations: list[Row]) -> None:
    config = BCConfig().environment("CartPole-v1").training(lr=1e-3, train_batch_size_per_learner=512)
    algorithm = build(config, demonstrations, dataset_num_iters_per_learner=50)
    for _ in range(8):
        algorithm.train()
    played = mean_return(record("CartPole-v1", of_module(algorithm), 20, seed=1000))
    algorithm.stop()
    assert mean_return(demonstrations) > 400
    assert played >= 0.9 * mean_return(demonstrations)


def test_marwil_follows_the_better_episodes() -> None:
    numbers = np.random.default_rng(1)
    good = record("CartPole-v1", balance, 6)
    bad = record("CartPole-v1", lambda obs: balance(obs) ^ int(numbers.random() < 0.75), 300, seed=500)
    returns = {}
    for config in (BCConfig(), MARWILConfig().training(beta=1.0)):
        config.environment("CartPole-v1").training(lr=1e-3, train_batch_size_per_learner=1024)
        algorithm = build(config, bad + good, dataset_num_iters_per_learner=150)
        algorithm.train()
        returns[config.algo_class] = mean_return(record("CartPole-v1", of_module(algorithm), 20, seed=1000))
        algorithm.stop()
    assert returns[BC] < 2 * mean_return(bad + good)
    assert returns[MARWIL] > 4 * mean_return(bad + good)


def test_marwil_sees_what_followed_in_the_episode() -> None:
    rows = record("CartPole-v1", at_random(2), 3)
    config = MARWILConfig().environment("CartPole-v1").training(gamma=1.0)
    algorithm = build(config.training(train_batch_size_per_learner=len(rows)), rows)
    batch = next(algorithm.offline_data.iter_torch_batches(batch_size=len(rows)))
    algorithm.stop()
    lengths = [sum(row["eps_id"] == episode for row in rows) for episode in range(3)]
    steps_left = sorted(float(left) for length in lengths for left in range(1, length + 1))
    assert sorted(batch["default_policy/value_targets"].tolist()) == pytest.approx(steps_left, abs=1e-3)


@pytest.mark.parametrize("updates", [1, 3])
def test_cql_learns_from_continuous_actions(updates: int) -> None:
    config = CQLConfig().environment("Pendulum-v1").training(train_batch_size_per_learner=64, bc_iters=2, lr=None)
    algorithm = build(config, swing(), dataset_num_iters_per_learner=updates)
    losses = [algorithm.train()["learners"]["default_policy"]["total_loss"] for _ in range(4)]
    batch = next(algorithm.offline_data.iter_torch_batches(batch_size=64))
    algorithm.stop()
    assert all(math.isfinite(loss) for loss in losses)
    assert len(set(losses)) == 4
    actions = batch["default_policy/actions"]  # the environment's are between -2 and 2, a policy's between -1 and 1
    assert 0.9 < float(actions.abs().max()) <= 1


def swing() -> list[Row]:
    numbers = np.random.default_rng(3)
    return record("Pendulum-v1", lambda obs: numbers.uniform(-2, 2, 1).astype(np.float32), 3)


def test_actions_that_were_recorded_as_a_policy_put_them_out() -> None:
    rows = [{**row, "actions": row["actions"] / 2} for row in swing()]
    config = BCConfig().environment("Pendulum-v1").training(train_batch_size_per_learner=len(rows))
    algorithm = build(config, rows, actions_in_input_normalized=True)
    batch = next(algorithm.offline_data.iter_torch_batches(batch_size=len(rows)))
    algorithm.stop()
    recorded = sorted(float(row["actions"][0]) for row in rows)
    assert sorted(batch["default_policy/actions"][:, 0].tolist()) == pytest.approx(recorded)


def test_connectors_of_the_user_get_the_same_steps() -> None:
    from ray.rllib.connectors.connector_v2 import ConnectorV2

    class Unchanged(ConnectorV2):  # type: ignore[misc]
        def __call__(self, *, batch: Any, **_: Any) -> Any:
            return batch

    batches = []
    for connector in (None, lambda *_: Unchanged()):
        config = CQLConfig().environment("Pendulum-v1").training(learner_connector=connector, lr=None)
        algorithm = build(config, swing())
        batches.append(next(algorithm.offline_data.iter_torch_batches(batch_size=50)))
        algorithm.stop()
    plain, connected = batches
    for name in ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"):
        one, other = (np.asarray(batch[f"default_policy/{name}"]) for batch in (plain, connected))
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def losses_of(rows: list[Row], seed: int, updates: int = 1) -> list[float]:
    config = BCConfig().environment("CartPole-v1").training(train_batch_size_per_learner=32)
    algorithm = build(config, rows, seed, dataset_num_iters_per_learner=updates)
    losses = [algorithm.train()["learners"]["default_policy"]["total_loss"] for _ in range(3)]
    algorithm.stop()
    return [float(loss) for loss in losses]


def test_the_same_seed_gives_the_same_losses() -> None:
    rows = record("CartPole-v1", at_random(5), 3)
    assert losses_of(rows, seed=7) == losses_of(rows, seed=7)
    assert losses_of(rows, seed=7) != losses_of(rows, seed=8)


@pytest.mark.parametrize("updates", [1, 3])
def test_fewer_rows_than_a_batch(updates: int) -> None:
    losses = losses_of(record("CartPole-v1", at_random(5), 1)[:5], seed=1, updates=updates)
    assert losses == sorted(losses, reverse=True)


def test_columns_of_the_old_api_stack() -> None:
    rows = record("CartPole-v1", at_random(5), 5)
    renamed = [
        {"obs": row["obs"].tolist(), "actions": row["actions"], "rewards": row["rewards"], "dones": row["terminateds"]}
        | {"new_obs": row["new_obs"].tolist(), "eps_id": row["eps_id"], "unroll_id": 0, "agent_index": 0, "t": row["t"]}
        for row in rows
    ]
    config = MARWILConfig().environment("CartPole-v1").training(train_batch_size_per_learner=32)
    algorithm = build(config, renamed)
    result = algorithm.train()["learners"]
    algorithm.stop()
    assert math.isfinite(result["default_policy"]["total_loss"])
    assert result["__all_modules__"]["dataset_num_iters_trained"] == math.ceil(len(rows) / 32)  # an epoch


@pytest.mark.parametrize("runners", [0, 1])
def test_evaluates_beside_training_and_continues_from_a_checkpoint(runners: int, tmp_path: Path) -> None:
    rows = record("CartPole-v1", balance, 10)
    config = BCConfig().environment("CartPole-v1").training(train_batch_size_per_learner=512, lr=1e-3)
    config.evaluation(evaluation_interval=1, evaluation_num_env_runners=runners, evaluation_duration=2)
    algorithm = build(config, rows, dataset_num_iters_per_learner=20)
    played = algorithm.train()["evaluation"]["env_runners"]["episode_return_mean"]
    algorithm.save_to_path(str(tmp_path))
    weights = algorithm.learner_group.get_weights()["default_policy"]
    algorithm.stop()
    assert played > 0
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(sizes) < 2_000_000  # the network and the optimizer, without the rows

    continued = build(config.copy(copy_frozen=False), rows, dataset_num_iters_per_learner=20)
    restore(continued, str(tmp_path))
    again = continued.learner_group.get_weights()["default_policy"]
    assert all(np.array_equal(weights[name], again[name]) for name in weights)
    assert continued.train()["training_iteration"] == 2
    continued.stop()
