"""Features and label: the tensors of to_torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.torch_batches import features_and_label

BATCHES = [
    {"a": torch.tensor([1, 2]), "m": torch.ones(2, 3), "y": torch.tensor([0, 1])},
    {"a": torch.tensor([3]), "m": torch.zeros(1, 3), "y": torch.tensor([1])},
]


def test_features_side_by_side_and_label() -> None:
    pairs = features_and_label(BATCHES, label_column="y")
    for _ in range(2):  # every iteration is a pass of its own
        (features, label), (last, _) = pairs
        assert features.tolist() == [[1, 1, 1, 1], [2, 1, 1, 1]]
        assert label is not None
        assert label.tolist() == [[0], [1]]
        assert last.tolist() == [[3, 0, 0, 0]]


def test_groups_of_features_with_types() -> None:
    groups = {"left": ["a"], "right": ["m", "a"]}
    dtypes = {"left": torch.float64, "a": torch.float16}
    features, label = next(
        iter(features_and_label(BATCHES, feature_columns=groups, feature_column_dtypes=dtypes, unsqueeze_label=False))
    )
    assert label is None
    assert features["left"].dtype == torch.float16
    assert features["right"].shape == (2, 4)


def test_label_without_a_second_dimension() -> None:
    _, label = next(
        iter(features_and_label(BATCHES, label_column="y", unsqueeze_label=False, label_column_dtype=torch.float32))
    )
    assert label is not None
    assert label.dtype == torch.float32
    assert label.shape == (2,)


def test_features_that_do_not_fit_side_by_side_are_named() -> None:
    with pytest.raises(DataError, match=r"'a': \(2,\), 'm': \(2, 3\)"):
        next(iter(features_and_label(BATCHES, feature_columns=["a", "m"], unsqueeze_features=False)))
    with pytest.raises(ConfigError, match="'z'"):
        next(iter(features_and_label(BATCHES, feature_columns=["z"])))


def test_lists_of_types_go_along_with_the_columns() -> None:
    def first(**arguments: Any) -> Any:
        return next(iter(features_and_label(BATCHES, **arguments)))[0]

    whole = first(feature_columns=["a", "m"], feature_column_dtypes=[torch.float16, "float64"])
    assert whole.dtype == torch.float64
    assert first(feature_columns=["a"], feature_column_dtypes=["float16"]).dtype == torch.float16
    left, right = first(feature_columns=[["a"], ["a", "m"]], feature_column_dtypes=["float32", ["int8", "float64"]])
    assert (left.dtype, left.shape) == (torch.float32, (2, 1))
    assert (right.dtype, right.shape) == (torch.float64, (2, 4))
    named = first(feature_columns={"right": ["a", "m"]}, feature_column_dtypes={"right": ["int8", "float64"]})
    assert named["right"].dtype == torch.float64
    with pytest.raises(ConfigError, match=r"feature_column_dtypes has 1 .* 2 of feature_columns"):
        features_and_label(BATCHES, feature_columns=["a", "m"], feature_column_dtypes=["float32"])
    with pytest.raises(ConfigError, match=r"feature_column_dtypes is 'float33'"):
        features_and_label(BATCHES, feature_columns=["a"], feature_column_dtypes=["float33"])


def test_columns_that_are_not_asked_for_may_hold_anything() -> None:
    dataset = data.from_items([{"name": "one", "x": 1.0, "y": 1}, {"name": "two", "x": 2.0, "y": 0}])
    features, label = next(iter(dataset.to_torch(feature_columns=["x"], label_column="y", batch_size=2)))
    assert (features.tolist(), label.tolist()) == ([[1.0], [2.0]], [[1], [0]])
    groups, nothing = next(iter(dataset.to_torch(feature_columns={"both": ["x", "y"]}, batch_size=1)))
    assert (groups["both"].tolist(), nothing) == ([[1.0, 1.0]], None)
    with pytest.raises(ConfigError, match=r"'z'.*'name', 'x', 'y'"):
        next(iter(dataset.to_torch(feature_columns=["z"], label_column="y")))
