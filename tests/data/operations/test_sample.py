"""Random samples of rows."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.data.block import ReadRequest
from tests.data.transforming import chunks, column, dataset


def test_a_sample_depends_on_seed_and_block_alone() -> None:
    ds = dataset(3000, 1000)
    sample = ds.random_sample(0.3, seed=7)
    first = column(sample, "a")
    assert [
        value for chunk in chunks(sample, ReadRequest(chunk_rows=17)) for value in chunk.column("a").to_pylist()
    ] == first
    assert column(ds.random_sample(0.3, seed=7), "a") == first
    assert column(ds.random_sample(0.3, seed=8), "a") != first
    assert 700 < len(first) < 1100
    assert first == sorted(first)
    per_block = [{value % 1000 for value in first if value // 1000 == block} for block in range(3)]
    assert per_block[0] != per_block[1] != per_block[2]


def test_a_sample_without_seed_stays_the_same_for_one_dataset() -> None:
    ds = dataset(1000, 1000)
    sample = ds.random_sample(0.5)
    assert column(sample, "a") == column(pickle.loads(pickle.dumps(sample)), "a")
    assert column(sample, "a") != column(ds.random_sample(0.5), "a")
    assert column(ds.random_sample(1), "a") == list(range(1000))
    assert column(ds.random_sample(0), "a") == []


@pytest.mark.parametrize("fraction", [-0.1, 1.5, "half", True, float("nan")])
def test_a_fraction_is_a_number_from_0_to_1(fraction: Any) -> None:
    with pytest.raises(ConfigError, match="from 0 to 1"):
        dataset().random_sample(fraction)
