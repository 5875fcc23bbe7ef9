"""Actions for batches of observations: as data of every kind, over datasets, and over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")

import gymnasium as gym

from paceline import data
from paceline.air.errors import CheckpointError, ConfigError, DataError
from paceline.data.preprocessors import Concatenator, StandardScaler
from paceline.serve.model import Recipe
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.rl.checkpoint import RLCheckpoint
from paceline.train.rl.predictor import RLPredictor
from tests.serve.serving import serving

pytestmark = pytest.mark.rl

NAMES = ["position", "speed", "angle", "turn"]
ROWS = np.random.default_rng(0).normal(size=(30, 4))
FRAME = pd.DataFrame(ROWS, columns=NAMES)
VECTORS = pd.DataFrame({"obs": list(ROWS)})


def predictor(saved_runs: Path, name: str = "cartpole") -> RLPredictor:
    return RLPredictor.from_checkpoint(saved_runs / name / "saved", trust=True)


def stored(saved_runs: Path, target: Path, name: str = "cartpole") -> RLCheckpoint:
    """As a run stores it: with the name of its class."""
    return RLCheckpoint.from_directory(RLCheckpoint.from_directory(saved_runs / name / "saved").to_directory(target))


@pytest.mark.parametrize(
    "form",
    [
        lambda: FRAME,
        lambda: VECTORS,
        lambda: VECTORS.rename(columns={"obs": "anything"}),
        lambda: VECTORS.assign(reward=1.0),
        lambda: {name: FRAME[name].to_numpy() for name in NAMES},
        lambda: {"obs": ROWS},
        lambda: pa.Table.from_pandas(FRAME),
        lambda: pa.Table.from_pandas(VECTORS),
    ],
)
def test_every_kind_of_data(saved_runs: Path, form: Callable[[], Any]) -> None:
    found, rows = predictor(saved_runs), form()
    expected = found.policy.compute_actions(ROWS)
    assert set(expected) == {0, 1}
    answer = found.predict(rows)
    assert isinstance(answer, type(rows))
    actions = answer["predictions"]
    assert list(actions.to_numpy() if hasattr(actions, "to_numpy") else actions) == list(expected)
    if not isinstance(rows, dict):
        nothing = found.predict(rows[:0])
        assert len(nothing) == 0
        table = nothing if isinstance(nothing, pa.Table) else pa.Table.from_pandas(nothing)
        assert table["predictions"].type == pa.int64()


def test_an_array_is_answered_with_actions_for_the_environment(saved_runs: Path) -> None:
    found = predictor(saved_runs, "pendulum")
    actions = found.predict(np.ones((3, 3)))
    assert actions.shape == (3, 1)
    assert found.policy.action_space.contains(actions[0])
    assert found.predict(np.ones((0, 3))).shape == (0, 1)
    assert list(found.predict(pd.DataFrame(np.ones((3, 3)))).columns) == ["predictions"]


def test_dicts_of_observations_and_actions(saved_runs: Path) -> None:
    found = predictor(saved_runs, "dict")
    rows = pd.DataFrame({"mode": [0, 2], "note": ["a", "b"], "where": [[0.0, 1.0], [0.5, 0.5]]})
    answer = found.predict(rows)
    actions = found.policy.compute_actions({"mode": [0, 2], "where": [[0.0, 1.0], [0.5, 0.5]]})
    assert list(answer.columns) == ["predictions_push_0", "predictions_push_1", "predictions_turn"]
    np.testing.assert_allclose(answer[["predictions_push_0", "predictions_push_1"]], actions["push"], rtol=1e-5)
    assert list(answer["predictions_turn"]) == list(actions["turn"])
    with pytest.raises(DataError, match=r"Dict\(.*'mode' missing"):
        found.predict(rows.drop(columns="mode"))


def test_exploring_is_a_keyword(saved_runs: Path) -> None:
    same = np.zeros((300, 4))
    assert len(set(predictor(saved_runs).predict(same))) == 1
    assert set(predictor(saved_runs).predict(same, explore=True)) == {0, 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (FRAME.assign(reward=1.0), r"Box\(.*give 4 columns of numbers, or a column \"obs\".*'reward'"),
        (FRAME.drop(columns="turn"), r"give 4 columns of numbers"),
        (ROWS[:, :3], r"Box\(.*\(30, 3\) was given"),
        (FRAME.mask(FRAME > 1), "missing values"),
    ],
)
def test_rows_that_do_not_fit(saved_runs: Path, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        predictor(saved_runs).predict(rows)


def test_policies_that_need_more_than_rows_are_refused(saved_runs: Path) -> None:
    with pytest.raises(ConfigError, match="has a memory"):
        predictor(saved_runs, "lstm")
    with pytest.raises(ConfigError, match="earlier steps"):
        predictor(saved_runs, "history")
    with pytest.raises(ConfigError, match=r"takes what RLCheckpoint\.get_policy\(\) gives"):
        RLPredictor("CartPole-v1")  # type: ignore[arg-type]


def test_the_preprocessor_comes_first(saved_runs: Path) -> None:
    scaler = StandardScaler(NAMES)
    scaler.fit(data.from_pandas(FRAME * 5 + 3))
    checkpoint = RLCheckpoint.from_directory(saved_runs / "cartpole" / "saved").with_preprocessor(scaler)
    found = RLPredictor.from_checkpoint(checkpoint, trust=True)
    expected = found.policy.compute_actions(ROWS - ROWS.mean(0))
    assert list(found.predict(FRAME * 5 + 3)["predictions"]) == list(expected)
    found.set_preprocessor(Concatenator(output_column_name="all", include=NAMES))
    assert list(found.predict(FRAME)["predictions"]) == list(found.policy.compute_actions(ROWS))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_whole_dataset(saved_runs: Path, tmp_path: Path, workers: int) -> None:
    checkpoint = stored(saved_runs, tmp_path / "stored")
    rows = data.from_pandas(FRAME.assign(reward=1.0))
    scoring: dict[str, Any] = {"min_scoring_workers": workers, "max_scoring_workers": workers} if workers > 1 else {}
    answer = (
        BatchPredictor.from_checkpoint(checkpoint, trust=True)
        .predict(rows, feature_columns=NAMES, keep_columns=["reward"], **scoring)
        .to_pandas()
    )
    assert list(answer["predictions"]) == list(predictor(saved_runs).predict(ROWS))
    assert list(answer["reward"]) == [1.0] * len(FRAME)


def test_serving_asks_for_trust(saved_runs: Path, tmp_path: Path) -> None:
    checkpoint = stored(saved_runs, tmp_path / "stored")
    with pytest.raises(CheckpointError, match=r"algorithm_state\.pkl, .* 11 more files.*any code.*trust=True"):
        Recipe(None, False, {}).load(checkpoint)
    assert isinstance(Recipe(None, True, {}).load(checkpoint).predictor, RLPredictor)


@pytest.mark.parametrize(
    "body",
    [
        ROWS.tolist(),
        {"columns": {"obs": ROWS.tolist()}},
        {"rows": [{"obs": row.tolist()} for row in ROWS]},
        {"rows": FRAME.to_dict("records")},
        {"columns": NAMES, "data": ROWS.tolist()},
    ],
)
def test_observations_over_http(saved_runs: Path, body: Any) -> None:
    found = predictor(saved_runs)
    with serving(found) as server:
        assert server.predict(body).json == {"predictions": found.predict(ROWS).tolist()}


def test_what_the_server_says_about_observations(saved_runs: Path) -> None:
    with serving(predictor(saved_runs, "dict")) as server:
        operation = server.ask("GET", "/openapi.json").json["paths"]["/predict"]["post"]
        example = operation["requestBody"]["content"]["application/json"]["example"]
        assert example == {"rows": [{"mode": 0, "where": [0.0, 0.0]}]}
        assert server.predict(example).status == 200
        wrong = server.predict({"rows": [{"mode": 7, "where": [0.0, 0.0]}]})
        assert wrong.status == 422
        assert "Discrete(3)" in wrong.reason


def test_an_episode_played_through_the_command(saved_runs: Path, tmp_path: Path) -> None:
    checkpoint = stored(saved_runs, tmp_path / "stored")
    policy = checkpoint.get_policy(trust=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli.main", "serve", str(checkpoint.path), "--trust", "--port", "0"],
        env={**os.environ, "PACELINE_TOKEN": "a-token-for-this-very-test"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = re.search(r"at (http://\S+)", process.stdout.readline())
        assert address is not None
        env, steps = gym.make("CartPole-v1"), 0
        observation, _ = env.reset(seed=1)
        over = False
        while not over:
            action = asked(address[1], observation.tolist())
            assert action == policy.compute_single_action(observation)
            observation, _, terminated, truncated, _ = env.step(action)
            over, steps = terminated or truncated, steps + 1
        assert steps > 5
    finally:
        process.kill()
        process.communicate(timeout=30)


def asked(address: str, observation: list[float]) -> int:
    body = json.dumps({"rows": [{"obs": observation}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer a-token-for-this-very-test"}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/predict", body, headers), timeout=30) as answer:
        return int(json.load(answer)["predictions"][0])
