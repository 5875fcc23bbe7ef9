"""What is taken as observations of each kind of space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")

from gymnasium import spaces

from paceline.air.errors import DataError
from paceline.train.rl.observations import observation_batch, rows_in, some_observation

pytestmark = pytest.mark.rl

PIXELS = spaces.Box(0, 255, (2, 3), np.uint8)
NESTED = spaces.Dict(
    {
        "picture": PIXELS,
        "rest": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), spaces.Discrete(3, start=-1)]),
    }
)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], part) for key, part in expected.items())
    if isinstance(expected, tuple):
        return all(same(*parts) for parts in zip(found, expected, strict=True))
    return found.dtype == expected.dtype and np.array_equal(found, expected)


def test_a_nested_space_as_columns_as_rows_and_one_by_one() -> None:
    NESTED.seed(1)
    samples = [NESTED.sample() for _ in range(5)]
    columns = {
        "picture": np.stack([each["picture"] for each in samples]),
        "rest": tuple(np.stack([each["rest"][index] for each in samples]) for index in range(3)),
    }
    batch = observation_batch(NESTED, columns)
    assert same(batch, columns)
    assert same(observation_batch(NESTED, samples), columns)
    assert rows_in(batch) == 5
    first = observation_batch(NESTED, samples[0], single=True)
    assert rows_in(first) == 1
    assert np.array_equal(first["picture"][0], samples[0]["picture"])


def test_whole_numbers_come_as_any_type_that_holds_them() -> None:
    """JSON and networks have no bytes."""
    pixels = np.full((1, 2, 3), 255.0, np.float32)
    assert observation_batch(PIXELS, pixels).dtype == np.uint8
    for wrong in (pixels + 1, pixels - 300, pixels + 0.5 - 1):
        with pytest.raises(DataError, match="do not fit uint8"):
            observation_batch(PIXELS, wrong)


def test_values_beyond_the_bounds_of_a_box_pass() -> None:
    space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert observation_batch(space, [[7.0]])[0, 0] == 7.0


@pytest.mark.parametrize(
    ("space", "rows", "message"),
    [
        (spaces.MultiDiscrete([2, 3]), [[1, 3]], r"MultiDiscrete\(\[2 3\]\), but some .* out of its range"),
        (spaces.MultiBinary(2), [[0, 2]], r"MultiBinary\(2\), but some .* out of its range"),
        (spaces.Discrete(3, start=-1), [2], "out of its range"),
        (NESTED, {"picture": [np.zeros((2, 3))], "rest": 1}, r"observation \['rest'\] is Tuple"),
        (NESTED, [{"picture": np.zeros((2, 3)), "rest": (0, 0)}], r"observation \['rest'\] is Tuple"),
        (spaces.Text(5), ["abc"], "does not support spaces of the kind Text"),
    ],
)
def test_what_does_not_fit(space: Any, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        observation_batch(space, rows)


def test_some_observation_is_in_the_space() -> None:
    row = observation_batch(NESTED, some_observation(NESTED), single=True)
    assert rows_in(row) == 1
    assert row["rest"][2].tolist() == [-1]
