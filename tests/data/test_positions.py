"""Who reads which rows: every row exactly once, whatever the number of workers was and is."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from paceline.air.errors import DataError
from paceline.data.ingest import ranges as rs
from paceline.data.ingest.epoch_order import EpochOrder
from paceline.data.ingest.local_shuffle import LocalShuffle
from paceline.data.ingest.position import Progress, Shares, merged, share_epoch
from paceline.data.ingest.prepared import PreparedDataset
from paceline.data.ingest.states import merge_states, problem_with, state_for
from paceline.data.plan import Plan
from paceline.data.sources.memory import RangeSource


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


def read_some(shares: Shares, rank: int, rows: int) -> list[int]:
    """What a rank hands out next: positions, in order."""
    leg = shares.progress.legs[-1]
    part, done = shares.parts[rank], leg.yielded[rank]
    before = set(members(leg.shuffle.first(part, done, shares.progress.epoch)))
    after = members(leg.shuffle.first(part, done + rows, shares.progress.epoch))
    return [position for position in after if position not in before]


@pytest.mark.parametrize("window", [0, 5, 16])
@pytest.mark.parametrize("uneven", ["all", "equal"])
@pytest.mark.parametrize("seed", range(15))
def test_every_row_once_through_changing_numbers_of_workers(seed: int, uneven: str, window: int) -> None:
    rng = random.Random(seed)
    total = rng.choice([0, 1, 7, 100, 331])
    shuffle = LocalShuffle(window, seed)
    state = Progress(epoch=rng.randrange(4), seed=1, rows=total, blocks=1).as_json()
    seen: list[int] = []
    for workers in (2, 2, 1, 3, 3, 5):
        shares = share_epoch(Progress.from_json(state), workers, uneven, shuffle)  # type: ignore[arg-type]
        ranks = []
        for rank in range(workers):
            done = shares.progress.legs[-1].yielded[rank]
            rows = min(rng.randrange(40), rs.length(shares.parts[rank]) - done)
            seen += read_some(shares, rank, rows)
            yielded = list(shares.progress.legs[-1].yielded)
            yielded[rank] = done + rows
            mine = shares.progress.as_json()
            mine["legs"][-1][1] = yielded
            ranks.append(mine)
        state = merged(ranks) or {}
    final = share_epoch(Progress.from_json(state), 5, uneven, shuffle)  # type: ignore[arg-type]
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
        shares = share_epoch(Progress(epoch, 0, rows=10, blocks=1), 3, "equal", LocalShuffle())
        assert [rs.length(part) for part in shares.parts] == [3, 3, 3]
        left_out += members(shares.left_out)
    assert sorted(left_out) == list(range(10))


def test_the_same_number_of_workers_goes_on_where_it_was() -> None:
    first = share_epoch(Progress(0, 0, 100, 1), 2, "all", LocalShuffle())
    ranks = []
    for rank, done in ((0, 30), (1, 7)):
        mine = first.progress.as_json()
        mine["legs"][-1][1][rank] = done
        ranks.append(mine)
    again = share_epoch(Progress.from_json(merged(ranks) or {}), 2, "all", LocalShuffle())
    assert again.parts == first.parts
    assert again.progress.legs[-1].yielded == (30, 7)


def test_a_rank_that_is_an_epoch_ahead_has_finished_the_earlier_one() -> None:
    behind = share_epoch(Progress(3, 0, 10, 1), 2, "all", LocalShuffle()).progress.as_json()
    behind["legs"][-1][1] = [4, 0]
    ahead = Progress(4, 0, 10, 1).as_json()
    shares = share_epoch(Progress.from_json(merged([behind, ahead]) or {}), 2, "all", LocalShuffle())
    assert members(shares.remaining()) == [4]


def test_ranks_that_read_ahead_begin_the_earlier_epoch_anew() -> None:
    behind = share_epoch(Progress(3, 0, 10, 1), 2, "all", LocalShuffle()).progress.as_json()
    ahead = {**Progress(4, 0, 10, 1).as_json(), "read_ahead": True}
    shares = share_epoch(Progress.from_json(merged([ahead, behind]) or {}), 2, "all", LocalShuffle())
    assert shares.progress.epoch == 3
    assert members(shares.remaining()) == list(range(10))


def test_a_rank_that_said_nothing_is_where_rank_0_is() -> None:
    mine = share_epoch(Progress(0, 0, 10, 1), 2, "all", LocalShuffle()).progress.as_json()
    mine["legs"][-1][1] = [3, 0]
    assert (merged([mine, None]) or {})["legs"][-1][1] == [3, 3]


@pytest.mark.parametrize("shuffle", ["none", "blocks", "rows"])
def test_an_epoch_has_every_row_once_and_its_own_order(shuffle: str) -> None:
    counts = (3, 0, 5, 1, 7, 4)
    orders = []
    for epoch in range(3):
        order = EpochOrder(counts, shuffle, 11, epoch)  # type: ignore[arg-type]
        rows = np.concatenate(list(order.row_numbers(((0, 20),), 6)))
        assert sorted(rows.tolist()) == list(range(20))
        orders.append(tuple(rows.tolist()))
        again = EpochOrder(counts, shuffle, 11, epoch)  # type: ignore[arg-type]
        pieces = np.concatenate(list(again.row_numbers(((0, 7), (7, 20)), 100)))
        assert tuple(pieces.tolist()) == orders[-1]
    assert len(set(orders)) == (1 if shuffle == "none" else 3)


def test_pieces_cover_what_was_asked_for() -> None:
    order = EpochOrder((3, 0, 5), "none", 0, 0)
    pieces = [(piece.block, piece.start, piece.stop) for piece in order.pieces(((1, 2), (2, 6)))]
    assert pieces == [(0, 1, 3), (2, 0, 3)]


def test_states_of_datasets_that_every_rank_reads_whole_stay_with_their_rank() -> None:
    states = [{"valid": Progress(rank, 0, 10, 1).as_json()} for rank in range(2)]
    stored = merge_states(states, {"valid": False})["valid"]
    assert (state_for(stored, 1, 2) or {})["epoch"] == 1
    assert (state_for(stored, 2, 3) or {})["epoch"] == 0
    ten = PreparedDataset("valid", Plan(RangeSource(10, block_rows=10)), split=False)
    assert problem_with(stored, ten) is None
    twenty = PreparedDataset("valid", Plan(RangeSource(20, block_rows=20)), split=False)
    assert "20 in 1" in str(problem_with(stored, twenty))
    assert "whole among the workers then and is split now" in str(problem_with(stored, replace(ten, split=True)))
    assert "with shuffle 'none', and now it is 'rows'" in str(problem_with(stored, replace(ten, shuffle="rows")))


def test_a_share_goes_on_as_it_was_dealt_though_the_policy_is_another_one_now() -> None:
    equal = share_epoch(Progress(0, 0, 11, 1), 2, "equal", LocalShuffle())
    mine = equal.progress.as_json()
    mine["legs"][-1][1] = [3, 2]
    later = share_epoch(Progress.from_json(mine), 2, "all", LocalShuffle())
    seen = [*members(equal.parts[0])[:3], *members(equal.parts[1])[:2]]
    rest = [position for part in later.parts for position in members(part)]
    assert sorted([*seen, *rest, *members(equal.left_out)]) == list(range(11))


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(DataError, match="not the state of a dataset shard"):
        Progress.from_json({"epoch": 1})
    assert "cannot be read" in str(problem_with({"legs": 3}, PreparedDataset("x", Plan(RangeSource(1)), split=True)))
