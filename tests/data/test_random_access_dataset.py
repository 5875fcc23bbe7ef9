"""Rows that are looked up by a key."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError


def test_rows_are_found_by_their_key() -> None:
    rows = data.range(100).random_shuffle(seed=1).map(lambda row: {"id": row["id"], "square": row["id"] ** 2})
    found = rows.to_random_access_dataset("id", num_workers=3)
    assert found.get(7) == {"id": 7, "square": 49}
    assert found.get_async(9).result() == {"id": 9, "square": 81}
    assert found.multiget([5, 200, np.int64(5), 2]) == [
        {"id": 5, "square": 25},
        None,
        {"id": 5, "square": 25},
        {"id": 2, "square": 4},
    ]
    assert found.get(-1) is None
    assert "100 rows" in found.stats()


def test_a_column_that_cannot_be_a_key() -> None:
    with pytest.raises(ConfigError, match=r"to_random_access_dataset.*'idd'.*'id'"):
        data.range(3).to_random_access_dataset("idd")
    with pytest.raises(DataError, match="'v'"):
        data.from_items([{"v": [1, 2]}]).to_random_access_dataset("v")
