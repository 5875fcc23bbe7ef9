from __future__ import annotations

import math

from paceline.view.compare import aligned, differing


def test_only_keys_that_differ() -> None:
    configs = {
        "a": {"lr": 0.1, "model": {"layers": 2, "name": "x"}, "seed": 1},
        "b": {"lr": 0.1, "model": {"layers": 3, "name": "x"}, "seed": 1},
    }
    assert differing(configs) == {"model/layers": {"a": 2, "b": 3}}
    assert differing({"a": {"x": 1}, "b": {"x": 1}}) == {}


def test_a_key_that_one_does_not_have_differs() -> None:
    assert differing({"a": {"x": 1, "y": None}, "b": {"x": 1}, "c": None}) == {
        "x": {"a": 1, "b": 1},
        "y": {"a": None},
    }


def test_types_count_and_nan_equals_nan() -> None:
    assert differing({"a": {"x": 1, "y": math.nan}, "b": {"x": True, "y": math.nan}}) == {"x": {"a": 1, "b": True}}
    assert differing({"a": {"x": [1, 2]}, "b": {"x": [1, 2]}}) == {}


def test_aligned_keeps_the_order_of_the_first() -> None:
    assert list(aligned({"a": {"z": 1, "b": 2}, "b": {"a": 0, "b": 2}})) == ["z", "b", "a"]
