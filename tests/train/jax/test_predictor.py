"""JaxPredictor: arrays in, arrays out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors import Concatenator
from paceline.train import BatchPredictor
from paceline.train.jax import JaxCheckpoint, JaxPredictor
from paceline.train.predictor import predictor_for

PARAMS = {"weights": np.array([1.0, 10.0], np.float32), "bias": np.float32(0.5)}


def linear(params: Any, inputs: Any) -> Any:
    return inputs @ params["weights"] + params["bias"]


def test_an_array_is_one_array() -> None:
    answer = JaxPredictor(linear, PARAMS).predict(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert answer["predictions"].tolist() == [21.5, 43.5, 65.5]
    assert answer["predictions"].dtype == np.float32


def test_columns_go_by_name_and_several_outputs_come_back() -> None:
    def both(params: Any, columns: Any) -> Any:
        return {"sum": columns["a"] + columns["b"], "half": (columns["a"] / 2).astype(jnp.bfloat16)}

    answer = JaxPredictor(both, {}).predict(pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [3, 4, 5]}))
    assert answer["sum"].tolist() == [4, 6, 8]
    assert answer["half"].tolist() == [0.5, 1, 1.5]


def test_few_sizes_are_compiled() -> None:
    sizes = []

    def noting(params: Any, inputs: Any) -> Any:
        sizes.append(inputs.shape[0])  # when it is compiled
        return inputs.sum(axis=1)

    predictor = JaxPredictor(noting, {})
    for rows in (1, 2, 3, 4, 5, 7, 8):
        assert predictor.predict(np.ones((rows, 2), np.float32))["predictions"].tolist() == [2] * rows
    assert sizes == [1, 2, 4, 8]


@pytest.mark.parametrize("whole_state", [True, False])
def test_from_a_checkpoint(whole_state: bool, tmp_path: Path) -> None:
    state = {"params": PARAMS, "step": 3} if whole_state else PARAMS
    joined = Concatenator("x", include=["a", "b"], dtype=np.float32)
    saved = JaxCheckpoint.from_state(state, preprocessor=joined).to_directory(tmp_path / "saved")
    checkpoint = JaxCheckpoint.from_directory(saved)
    frame = pd.DataFrame({"a": [1.0, 3.0], "b": [2.0, 4.0]})
    assert predictor_for(checkpoint) is JaxPredictor
    assert JaxPredictor.from_checkpoint(checkpoint, linear).predict(frame)["predictions"].tolist() == [21.5, 43.5]
    chosen = JaxPredictor.from_checkpoint(str(saved), linear, params=lambda state: PARAMS | {"bias": 0.0})
    assert chosen.predict(frame)["predictions"].tolist() == [21, 43]


def test_many_rows_are_predicted_by_workers(tmp_path: Path) -> None:
    saved = JaxCheckpoint.from_state(PARAMS).to_directory(tmp_path / "saved")
    rows = data.from_numpy(np.arange(20, dtype=np.float32).reshape(10, 2))
    predictor = BatchPredictor.from_checkpoint(JaxCheckpoint.from_directory(saved), JaxPredictor, apply=linear)
    found = predictor.predict(rows, batch_size=4)
    assert sorted(found.to_pandas()["predictions"]) == [2 * n + 10 * (2 * n + 1) + 0.5 for n in range(10)]


def test_mistakes_are_told(tmp_path: Path) -> None:
    checkpoint = JaxCheckpoint.from_state(PARAMS)
    with pytest.raises(ConfigError, match=r"apply=model\.apply"):
        JaxPredictor.from_checkpoint(checkpoint)
    with pytest.raises(ConfigError, match="function apply"):
        JaxPredictor("apply", PARAMS)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no GPU"):
        JaxPredictor(linear, PARAMS, use_gpu=True)
    with pytest.raises(DataError, match="float32 tensor of shape"):
        JaxPredictor(linear, PARAMS).predict(np.ones((2, 3), np.float32))
