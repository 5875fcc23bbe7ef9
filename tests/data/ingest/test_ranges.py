"""Ranges of rows."""

from __future__ import annotations

import random

import pytest

from paceline.data.ingest import ranges as rs


def members(ranges: rs.Ranges) -> list[int]:
    return [position for start, stop in ranges for position in range(start, stop)]


def random_ranges(rng: random.Random, limit: int = 60) -> rs.Ranges:
    return rs.joined((position, position + 1) for position in rng.sample(range(limit), rng.randrange(limit)))


@pytest.mark.parametrize("seed", range(40))
def test_ranges_behave_like_sets(seed: int) -> None:
    rng = random.Random(seed)
    one, other = random_ranges(rng), random_ranges(rng)
    expected = sorted(set(members(one)) - set(members(other)))
    assert members(rs.without(one, other)) == expected
    assert rs.length(one) == len(members(one))
    start, stop = sorted((rng.randrange(70), rng.randrange(70)))
    assert members(rs.part(one, start, stop)) == members(one)[start:stop]
    numbers = rng.sample(range(rs.length(one)), rng.randrange(rs.length(one) + 1)) if one else []
    assert members(rs.at(one, numbers)) == sorted(members(one)[number] for number in numbers)
    shares = rs.dealt(one, 3, equal=False)
    assert [position for share in shares for position in members(share)] == members(one)
    sizes = [rs.length(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
