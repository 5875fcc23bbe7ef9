"""The permutation behind random orders."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from paceline.data.sources.shuffled import block_permutation, permute


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 99, 100, 101, 1023, 4097, 30_000])
def test_every_row_has_one_place(n: int) -> None:
    for seed, epoch in [(0, 0), (1, 0), (0, 1), (-5, 3), (2**63, 99)]:
        assert np.array_equal(np.sort(block_permutation(n, seed, epoch)), np.arange(n))


def test_any_part_of_an_order_is_the_same_on_its_own() -> None:
    whole = block_permutation(10_007, 3, 4)
    assert np.array_equal(permute(np.array([5, 9_000, 5]), 10_007, 3, 4), whole[[5, 9_000, 5]])
    assert permute(np.array([], np.int64), 0, 3, 4).size == 0
    with pytest.raises(ValueError, match="positions"):
        permute(np.array([7]), 7, 0, 0)


def test_the_order_is_fixed_for_all_times() -> None:
    """A position in a checkpoint means the same rows in later versions."""
    assert block_permutation(8, 42, 1).tolist() == [7, 0, 2, 1, 6, 3, 4, 5]


def test_large_numbers_of_rows_need_no_memory() -> None:
    rows = 10**15
    places = permute(np.arange(1000), rows, 1, 1)
    assert len(np.unique(places)) == 1000
    assert 0 <= places.min() < rows * 0.01
    assert rows * 0.99 < places.max() < rows


def test_all_orders_of_a_few_rows_are_about_equally_likely() -> None:
    seen = Counter(tuple(block_permutation(4, seed, 0)) for seed in range(4800))
    assert len(seen) == 24
    assert min(seen.values()) > 140  # 200 expected, with a deviation of 14
    assert max(seen.values()) < 260


def test_rows_go_everywhere_and_neighbours_are_parted() -> None:
    n, epochs = 40, 2000
    table = np.zeros((n, n))
    for epoch in range(epochs):
        table[np.arange(n), block_permutation(n, 7, epoch)] += 1
    expected = epochs / n
    deviation = ((table - expected) ** 2 / expected).sum() / (n - 1) ** 2
    assert 0.85 < deviation < 1.15  # chi square per degree of freedom
    order = block_permutation(100_000, 11, 0)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(len(order)), order)[0, 1]) < 0.02
