"""Who reads which rows: every row exactly once, whatever the number of workers was and is."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from paceline.data.ingest import ranges as rs
from paceline.data.ingest.position import LocalShuffle, ReadPosition, Shares, merged, share_epoch


def members(ranges: rs.Ranges) -> list[int]:
    return [position for start, stop in ranges for position in range(start, stop)]


def read_some(shares: Shares, rank: int, rows: int) -> list[int]:
    """What a rank hands out next: positions, in order."""
    leg = shares.position.legs[-1]
    part, done = shares.parts[rank], leg.yielded[rank]
    before = set(members(leg.shuffle.first(part, done, shares.position.epoch)))
    after = members(leg.shuffle.first(part, done + rows, shares.position.epoch))
    return [position for position in after if position not in before]


@pytest.mark.parametrize("window", [0, 5, 16])
@pytest.mark.parametrize("uneven", ["all", "equal"])
@pytest.mark.parametrize("seed", range(15))
def test_every_row_once_through_changing_numbers_of_workers(seed: int, uneven: str, window: int) -> None:
    rng = random.Random(seed)
    total = rng.choice([0, 1, 7, 100, 331])
    shuffle = LocalShuffle(window, seed)
    state = ReadPosition(epoch=rng.randrange(4), seed=1, rows=total, blocks=1).as_json()
    seen: list[int] = []
    for workers in (2, 2, 1, 3, 3, 5):
        shares = share_epoch(ReadPosition.from_json(state), workers, uneven, shuffle)  # type: ignore[arg-type]
        ranks = []
        for rank in range(workers):
            done = shares.position.legs[-1].yielded[rank]
            rows = min(rng.randrange(40), rs.length(shares.parts[rank]) - done)
            seen += read_some(shares, rank, rows)
            yielded = list(shares.position.legs[-1].yielded)
            yielded[rank] = done + rows
            mine = shares.position.as_json()
            mine["legs"][-1][1] = yielded
            ranks.append(mine)
        state = merged(ranks) or {}
    final = share_epoch(ReadPosition.from_json(state), 5, uneven, shuffle)  # type: ignore[arg-type]
    rest = members(final.remaining())
    left_out = members(final.left_out)
    assert sorted([*seen, *rest, *left_out]) == list(range(total))
    if uneven == "all":
        assert left_out == []
    else:
        assert len({rs.length(part) for part in final.parts}) == 1


def test_equal_shares_leave_out_other_rows_in_each_epoch() -> None:
    left_out = []
    for epoch in range(10):
        shares = share_epoch(ReadPosition(epoch, 0, rows=10, blocks=1), 3, "equal", LocalShuffle())
        assert [rs.length(part) for part in shares.parts] == [3, 3, 3]
        left_out += members(shares.left_out)
    assert sorted(left_out) == list(range(10))


def test_the_same_number_of_workers_goes_on_where_it_was() -> None:
    first = share_epoch(ReadPosition(0, 0, 100, 1), 2, "all", LocalShuffle())
    ranks = []
    for rank, done in ((0, 30), (1, 7)):
        mine = first.position.as_json()
        mine["legs"][-1][1][rank] = done
        ranks.append(mine)
    again = share_epoch(ReadPosition.from_json(merged(ranks) or {}), 2, "all", LocalShuffle())
    assert again.parts == first.parts
    assert again.position.legs[-1].yielded == (30, 7)


def test_a_rank_that_is_an_epoch_ahead_has_finished_the_earlier_one() -> None:
    behind = share_epoch(ReadPosition(3, 0, 10, 1), 2, "all", LocalShuffle()).position.as_json()
    behind["legs"][-1][1] = [4, 0]
    ahead = ReadPosition(4, 0, 10, 1).as_json()
    shares = share_epoch(ReadPosition.from_json(merged([behind, ahead]) or {}), 2, "all", LocalShuffle())
    assert members(shares.remaining()) == [4]


def test_ranks_that_read_ahead_begin_the_earlier_epoch_anew() -> None:
    behind = share_epoch(ReadPosition(3, 0, 10, 1), 2, "all", LocalShuffle()).position.as_json()
    ahead = {**ReadPosition(4, 0, 10, 1).as_json(), "read_ahead": True}
    shares = share_epoch(ReadPosition.from_json(merged([ahead, behind]) or {}), 2, "all", LocalShuffle())
    assert shares.position.epoch == 3
    assert members(shares.remaining()) == list(range(10))


def test_a_rank_that_said_nothing_is_where_rank_0_is() -> None:
    mine = share_epoch(ReadPosition(0, 0, 10, 1), 2, "all", LocalShuffle()).position.as_json()
    mine["legs"][-1][1] = [3, 0]
    assert (merged([mine, None]) or {})["legs"][-1][1] == [3, 3]


def test_a_share_goes_on_as_it_was_dealt_though_the_policy_is_another_one_now() -> None:
    equal = share_epoch(ReadPosition(0, 0, 11, 1), 2, "equal", LocalShuffle())
    mine = equal.position.as_json()
    mine["legs"][-1][1] = [3, 2]
    later = share_epoch(ReadPosition.from_json(mine), 2, "all", LocalShuffle())
    seen = [*members(equal.parts[0])[:3], *members(equal.parts[1])[:2]]
    rest = [position for part in later.parts for position in members(part)]
    assert sorted([*seen, *rest, *members(equal.left_out)]) == list(range(11))


def test_the_states_of_thousands_of_ranks_are_merged_rank_by_rank() -> None:
    workers = 2_000
    shares = share_epoch(ReadPosition(0, seed=1, rows=10 * workers, blocks=1), workers, "all", LocalShuffle())
    leg = shares.position.legs[-1]
    states = []
    for rank in range(workers):
        yielded = tuple(rank % 10 if other == rank else 0 for other in range(workers))
        states.append(replace(shares.position, legs=(replace(leg, yielded=yielded),)).as_json())
    began = time.process_time()
    whole = merged(states) or {}
    assert time.process_time() - began < 0.15  # 0.4 s if each state were read whole
    assert whole["legs"][-1][1] == [rank % 10 for rank in range(workers)]
