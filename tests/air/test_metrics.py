"""What may be reported, and what it becomes."""

from __future__ import annotations

import math
from collections import OrderedDict
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch

from paceline.air.errors import MetricError
from paceline.air.metrics import KEY_LIMIT, flattened, plain_metrics


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Pair(NamedTuple):
    a: int
    b: int


class Text(str):
    pass


PLAIN_VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (False, False),
    (0, 0),
    (-(2**63), -(2**63)),
    (2**64 - 1, 2**64 - 1),
    (1.5, 1.5),
    ("text", "text"),
    ("é" * 3, "é" * 3),
    (Text("sub"), "sub"),
    (np.float64(0.1), 0.1),
    (np.float32(0.5), 0.5),
    (np.float16(0.5), 0.5),
    (np.int64(7), 7),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.bool_(True), True),
    (np.str_("s"), "s"),
    (np.array(3.0), 3.0),
    (np.array([4]), 4),
    (np.array([[5.0]]), 5.0),
    (np.datetime64("2024-01-02"), "2024-01-02"),
    (torch.tensor(1.25), 1.25),
    (torch.tensor([2]), 2),
    (torch.tensor(True), True),
    (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
    (torch.tensor(1.5, requires_grad=True), 1.5),
    (Decimal("0.25"), 0.25),
    (datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), "2024-01-02T03:04:05+00:00"),
    (date(2024, 1, 2), "2024-01-02"),
    (Path("/a/b"), "/a/b"),
    (Colour.RED, "red"),
    (Level.HIGH, 3),
    ([1, 2.5, "x", None], [1, 2.5, "x", None]),
    ((1, np.int32(2)), [1, 2]),
    (Pair(1, 2), [1, 2]),
    ([torch.tensor(1.0), [np.float32(2)]], [1.0, [2.0]]),
    ({"a": {"b": np.int8(1)}}, {"a": {"b": 1}}),
    (OrderedDict(a=1), {"a": 1}),
    (MappingProxyType({"a": 1}), {"a": 1}),
    ({}, {}),
    ([], []),
]


@pytest.mark.parametrize(("given", "expected"), PLAIN_VALUES, ids=lambda value: repr(value)[:40])
def test_values_become_plain_exactly(given: Any, expected: Any) -> None:
    plain, finite = plain_metrics({"m": given})
    assert plain == {"m": expected}
    assert finite
    assert type(plain["m"]) is type(expected)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain)) == plain


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(math.inf), Decimal("nan"), {"a": [math.nan]}],
)
def test_numbers_that_are_not_finite_are_kept_and_noted(value: Any) -> None:
    plain, finite = plain_metrics({"m": value, "n": 1})
    assert not finite
    kept: Any = plain["m"]["a"][0] if isinstance(value, dict) else plain["m"]
    assert type(kept) is float
    assert not math.isfinite(kept)


REFUSED_VALUES: list[tuple[Any, str]] = [
    (None, "dict.*None"),
    ([("a", 1)], "dict.*list"),
    (3, r"dict.*\bint\b"),
    ({1: 2}, r"key 1\b.*int"),
    ({"a": {None: 2}}, "'a'.*key None"),
    ({"a": {"b": torch.zeros(2, 3)}}, r"'a/b'.*torch\.Tensor.*\(2, 3\)"),
    ({"a": [1, np.zeros(0)]}, r"'a\[1\]'.*numpy\.ndarray.*\(0,\)"),
    ({"a": object}, "'a'.*type"),
    ({"a": {1, 2}}, "'a'.*set"),
    ({"a": b"bytes"}, "'a'.*bytes"),
    ({"a": 1j}, "'a'.*complex"),
    ({"a": np.complex64(1j)}, "'a'.*complex"),
    ({"a": 2**64}, "'a'.*64 bits"),
    ({"a": [-(2**63) - 1]}, r"'a\[0\]'.*64 bits"),
    ({"a": "\ud800"}, "'a'.*Unicode"),
    ({"a": "x" * 100_000_000}, "100,000,00. bytes .*'a'"),
    ({"a": [0.5] * 200_000}, "1,000,000 bytes"),
    ({str(i): "y" * 100 for i in range(20_000)}, "1,000,000 bytes"),
    ({str(i): 0 for i in range(1_000_000)}, f"1,000,000 keys.*{KEY_LIMIT:,}"),
]


@pytest.mark.parametrize(
    ("given", "message"), REFUSED_VALUES, ids=lambda value: repr(value)[:30] if len(repr(value)) < 200 else ""
)
def test_other_values_are_refused_by_name(given: Any, message: str) -> None:
    with pytest.raises(MetricError, match=message) as caught:
        plain_metrics(given)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_a_dict_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(MetricError, match=r"again.*itself"):
        plain_metrics(loop)


def test_the_callers_dict_is_not_shared() -> None:
    metrics: dict[str, Any] = {"a": 1}
    plain, _ = plain_metrics(metrics)
    metrics["a"] = 2
    assert plain == {"a": 1}
    nested: dict[str, Any] = {"a": {"b": [1]}}
    plain, _ = plain_metrics(nested)
    nested["a"]["b"].append(2)
    assert plain == {"a": {"b": [1]}}


def test_an_empty_dict_is_a_row() -> None:
    assert plain_metrics({}) == ({}, True)


def test_nested_metrics_flatten() -> None:
    assert flattened({"a": {"b": {"c": 1}, "d": 2}, "e": {}, "f": [1]}) == {"a/b/c": 1, "a/d": 2, "e": {}, "f": [1]}
