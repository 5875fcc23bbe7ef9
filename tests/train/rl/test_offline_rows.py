"""Which datasets offline algorithms accept, and in which order their rows come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")
pytest.importorskip("paceline.train.rl.rllib")  # before anything of ray.rllib

from gymnasium import spaces
from ray.rllib.algorithms.bc import BC, BCConfig
from ray.rllib.algorithms.cql import CQL, CQLConfig
from ray.rllib.algorithms.iql import IQL
from ray.rllib.algorithms.marwil import MARWIL, MARWILConfig
from ray.rllib.algorithms.ppo import PPO

import paceline.data as data
from paceline.air.errors import ConfigError, DataError, MissingDatasetError
from paceline.data.iterator import DataIterator
from paceline.train.rl import offline_data
from paceline.train.rl.offline import check_columns, check_dataset, with_dataset
from paceline.train.rl.offline_data import RowsForLearner, Steps, episode_batches, row_batches

pytestmark = pytest.mark.rl

LENGTHS = (4, 1, 7, 3)


def steps(**extra: Any) -> list[dict[str, Any]]:
    """Episodes of these lengths; the observation is the number of the row."""
    rows: list[dict[str, Any]] = []
    for episode, length in enumerate(LENGTHS):
        for t in range(length):
            obs = np.float32(len(rows))
            rows.append({"eps_id": f"e{episode}", "t": t, "obs": [obs], "actions": 0, "rewards": 1.0, **extra})
            rows[-1] |= {"new_obs": [obs + 0.5], "terminateds": t == length - 1}
    return rows


def batches_of(rows: list[dict[str, Any]], size: int, seed: int | None = 1) -> Iterator[dict[str, Any]]:
    shard = DataIterator.over(data.from_items(rows))
    return row_batches(shard, check_columns(shard.schema().names, "BC"), size, seed)


def episodes_of(rows: list[dict[str, Any]], size: int, seed: int | None = 1) -> Iterator[list[Steps]]:
    shard = DataIterator.over(data.from_items(rows))
    return episode_batches(shard, check_columns(shard.schema().names, "MARWIL"), size, seed)


def without(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


# -- rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 15, 40])
def test_every_row_comes_once_per_epoch_in_another_order(size: int) -> None:
    batches = list(islice(batches_of(steps(), size), -(-60 // size)))
    assert {len(batch["obs"]) for batch in batches} == {size}
    order = np.concatenate([batch["obs"][:, 0] for batch in batches])[:60].reshape(4, 15)
    assert (np.sort(order, axis=1) == np.arange(15)).all()
    assert len({tuple(epoch) for epoch in order}) == 4


def test_the_seed_decides_on_the_order() -> None:
    one, same, other = (next(batches_of(steps(), 15, seed))["obs"].tolist() for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_a_resumed_run_gets_the_rows_that_are_left() -> None:
    dataset = data.from_items(steps())
    before, after = DataIterator.over(dataset), DataIterator.over(dataset)
    columns = check_columns(before.schema().names, "BC")
    batches = row_batches(before, columns, 5, 1)
    seen = [next(batches), next(batches)]
    after.load_state_dict(before.state_dict())
    seen.append(next(row_batches(after, columns, 5, 1)))
    assert sorted(np.concatenate([batch["obs"][:, 0] for batch in seen])) == list(range(15))


def test_a_large_dataset_is_shuffled_within_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_data, "WINDOW_ROWS", 5)
    numbers = next(batches_of(steps(), 5))["obs"][:, 0]
    assert sorted(numbers) == [0, 1, 2, 3, 4]


# -- episodes -----------------------------------------------------------------------------


def test_episodes_stay_whole_and_batches_are_full() -> None:
    batches = list(islice(episodes_of(steps(), 6), 10))
    assert {sum(len(part) for part in batch) for batch in batches} == {6}
    parts = [part for batch in batches for part in batch]
    for part in parts:
        numbers = part.rows["obs"][:, 0]
        assert (np.diff(numbers) == 1).all()
        last_of_episode = numbers[-1] in np.cumsum(LENGTHS) - 1
        assert part.terminated == last_of_episode
        assert part.last_obs == numbers[-1] + (0.5 if last_of_episode else 1)
    order = np.concatenate([part.rows["obs"][:, 0] for part in parts]).reshape(4, 15)
    assert (np.sort(order, axis=1) == np.arange(15)).all()
    assert len({tuple(epoch) for epoch in order}) > 1


def test_flags_separate_episodes_without_ids() -> None:
    rows = without(steps(truncateds=False), "eps_id", "t")
    assert sorted(len(part) for part in next(episodes_of(rows, 15))) == sorted(LENGTHS)


def test_an_episode_that_was_cut_off_ends_with_its_last_known_observation() -> None:
    rows = [{**row, "terminateds": False} for row in without(steps(), "new_obs")]
    batch = next(episodes_of(rows, 11))  # the step after each last observation is unknown
    assert sorted((len(part), part.truncated) for part in batch) == [(2, True), (3, True), (6, True)]
    assert all(part.last_obs == part.rows["obs"][-1] + 1 for part in batch)


def test_episodes_that_are_mixed_up() -> None:
    rows = steps()
    with pytest.raises(DataError, match=r"eps_id='e0' do not follow each other\. Sort the dataset"):
        next(episodes_of([*rows[1:], rows[0]], 15))
    with pytest.raises(DataError, match=r"column t\) of episode eps_id='e0' are not in order"):
        next(episodes_of([rows[1], rows[0], *rows[2:]], 15))
    with pytest.raises(DataError, match="terminateds says that episode eps_id='e0' ends before its last row"):
        next(episodes_of(without([rows[3], *rows[:3], *rows[4:]], "t"), 15))


# -- what is rejected ---------------------------------------------------------------------


def test_datasets_for_the_wrong_algorithm() -> None:
    train = data.from_items(steps())
    for fitting in (BC, MARWIL, CQL, IQL):
        check_dataset({"train": train}, fitting)
    check_dataset({}, PPO)
    check_dataset({}, BC, ["files"])
    check_dataset({"train": lambda: train}, BC, "sampler")
    with pytest.raises(ConfigError, match=r"PPO learns in an environment.*BC, CQL, IQL, MARWIL"):
        check_dataset({"train": train}, PPO)
    with pytest.raises(MissingDatasetError, match=r"MARWIL.*datasets=.*obs, actions, rewards, terminateds"):
        check_dataset({}, MARWIL)
    with pytest.raises(ConfigError, match=r"uses only 'train', not 'valid'.*evaluation_interval"):
        check_dataset({"train": train, "valid": train}, BC)
    with pytest.raises(ConfigError, match="leave one of them out"):
        check_dataset({"train": train}, BC, ["files"])


def test_missing_columns() -> None:
    rows = [{"obs": [1.0], "action": 0, "next_obs": [1.0], "dones": False, "rewards": 1.0} for _ in range(2)]
    with pytest.raises(DataError, match=r"BC needs the column\(s\) actions; .*rename_columns\({'action': 'actions'}\)"):
        check_dataset({"train": data.from_items(rows)}, BC)
    named = [{**row, "actions": 0} for row in rows]
    check_dataset({"train": data.from_items(named)}, CQL)
    with pytest.raises(DataError, match="add a column eps_id"):
        check_dataset({"train": data.from_items(named)}, MARWIL)
    with pytest.raises(DataError, match=r"CQL needs the column\(s\) new_obs, terminateds"):
        check_dataset({"train": data.from_items(without(named, "next_obs", "dones"))}, CQL)


def test_columns_that_the_config_names() -> None:
    found = check_columns(["state", "actions"], "BC", {"obs": "state"})
    assert found["obs"] == "state"


def config(algorithm: Any = BCConfig) -> Any:
    box = spaces.Box(-100, 100, (1,), np.float32)
    return algorithm().environment(observation_space=box, action_space=spaces.Discrete(2)).learners(num_learners=0)


def test_settings_that_do_not_go_with_a_dataset() -> None:
    train = data.from_items(steps())
    with pytest.raises(ConfigError, match="num_learners=2"):
        with_dataset(config().learners(num_learners=2), train)
    with pytest.raises(ConfigError, match="input_read_episodes=True"):
        with_dataset(config().offline_data(input_read_episodes=True), train)
    with pytest.raises(ConfigError, match="set env in the config"):
        with_dataset(BCConfig().learners(num_learners=0), train)
    with pytest.raises(ConfigError, match="CQL needs an environment"):
        with_dataset(config(CQLConfig), train)
    with pytest.raises(DataError, match="no rows"):
        with_dataset(config(), train.limit(0))
    with pytest.raises(DataError, match="rewards, terminateds"):
        with_dataset(config(MARWILConfig), train.select_columns(["obs", "actions"]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"obs": [1.0, 2.0]}, r"obs has values of shape \(2,\); the environment's space has the shape \(1,\)"),
        ({"actions": 2}, "actions has the value 2; the space has only 0 to 1"),
        ({"obs": [float("nan")]}, "obs has values that are missing"),
        ({"rewards": None}, "rewards has values that are missing"),
    ],
)
def test_rows_that_do_not_fit_the_spaces(changed: dict[str, Any], message: str) -> None:
    made = with_dataset(config(), data.from_items([{**row, **changed} for row in without(steps(), "new_obs")]))
    rows = RowsForLearner(made)
    rows.spaces = {"__env__": (made.observation_space, made.action_space)}
    batch = next(row_batches(rows._shard, rows._columns, 4, 1))
    with pytest.raises(DataError, match=message):
        rows._prepared(batch)
