"""FeatureHasher."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import paceline.data
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors import FeatureHasher
from paceline.data.preprocessors.vectorizers import hash_place

TOKENS = ["I", "like", "dislike", "Python"]


def test_sums_columns_of_one_hash() -> None:
    data = pd.DataFrame({"I": [1, 1], "like": [1, 0], "dislike": [0, 1], "Python": [1, 4], "other": ["p", "q"]})
    result = FeatureHasher(TOKENS, num_features=3).transform(paceline.data.from_pandas(data)).to_pandas()
    expected = np.zeros((2, 3), np.int64)
    for token in TOKENS:
        expected[:, hash_place(token, 3)] += data[token].to_numpy()
    assert list(result.columns) == ["other", "hash_0", "hash_1", "hash_2"]
    hashed = result[["hash_0", "hash_1", "hash_2"]]
    np.testing.assert_array_equal(hashed.to_numpy(), expected)
    assert (hashed.dtypes == np.int64).all()


def test_hashes_are_the_same_in_another_process() -> None:
    code = "from paceline.data.preprocessors.vectorizers import hash_place\n"
    code += f"print([hash_place(token, 1000) for token in {TOKENS!r}])"
    seeded = {**os.environ, "PYTHONHASHSEED": "4"}  # Python's own hash of a text would depend on it
    done = subprocess.run([sys.executable, "-c", code], env=seeded, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([hash_place(token, 1000) for token in TOKENS])


def test_fractions_and_missing_counts() -> None:
    table = pa.table({"a": [0.5, None, float("nan")], "b": pa.array([1, 2, None], pa.int8()), "c": [True, False, True]})
    result = FeatureHasher(["a", "b", "c"], num_features=1).transform_batch(table)
    assert result["hash_0"].to_pylist() == [2.5, 2.0, 1.0]


def test_columns_that_hold_no_counts() -> None:
    with pytest.raises(DataError, match=r"FeatureHasher.*'a'.*string"):
        FeatureHasher(["a"], 4).transform_batch({"a": np.array(["x"], dtype=object)})
    with pytest.raises(DataError, match="'a'"):
        FeatureHasher(["a"], 4).transform_batch({"b": np.array([1])})
    with pytest.raises(ConfigError, match="num_features"):
        FeatureHasher(["a"], 2.5)  # type: ignore[arg-type]
