"""Who is where: counts, mismatches, and reducing over ranks."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from paceline.air.errors import MetricError
from paceline.run.alignment import Alignment, check_reduce, left_out, reduce_metrics
from paceline.run.messages import Report


def report(
    index: int,
    waits: bool = False,
    reduce: dict[str, str] | None = None,
    weights: dict[str, float] | None = None,
    **metrics: Any,
) -> Report:
    return Report(index=index, metrics=metrics, stamp=0.0, elapsed=0.0, waits=waits, reduce=reduce, weights=weights)


def aligned(counts: list[int], finished: tuple[int, ...] = (), start: int = 0) -> Alignment:
    """An alignment in which rank r has reported counts[r] times."""
    alignment = Alignment(len(counts), start)
    for rank, count in enumerate(counts):
        for index in range(start + 1, start + count + 1):
            alignment.received(rank, report(index))
    for rank in finished:
        alignment.finish(rank, counts[rank])
    return alignment


@pytest.mark.parametrize(
    ("counts", "finished", "wrong"),
    [
        ([3, 3], (0, 1), False),
        ([5, 2], (), False),  # nobody has finished: the other may still catch up
        ([5, 2], (0,), False),
        ([5, 4], (1,), True),
        ([4, 5], (0,), True),
        ([5, 4], (0, 1), True),
        ([3, 0], (0, 1), False),  # only rank 0 reports
        ([3, 0], (1,), False),
        ([0, 3], (0,), True),
        ([3, 3, 0], (2,), True),
        ([0, 0], (0, 1), False),
        ([2, 2, 2, 1], (0, 1, 2), False),
        ([2, 2, 2, 1], (3,), True),
    ],
)
def test_unequal_counts_are_told_as_soon_as_a_finished_rank_proves_them(
    counts: list[int], finished: tuple[int, ...], wrong: bool
) -> None:
    told = aligned(counts, finished, start=7).mismatch()
    assert (told is not None) is wrong
    if told is not None:
        for rank, count in enumerate(counts):
            assert f"rank {rank}: {count}{' (finished)' if rank in finished else ''}" in told


@pytest.mark.parametrize(
    ("counts", "expected"), [([3, 0], True), ([3, 1], False), ([0, 0], False), ([3], False), ([2, 0, 0], True)]
)
def test_only_rank_zero_reported(counts: list[int], expected: bool) -> None:
    assert aligned(counts).only_rank_zero_reported is expected


def test_everyone_waits_counts_only_ranks_that_still_take_part() -> None:
    alignment = Alignment(4, 0)
    alignment.received(0, report(2, waits=True))
    alignment.received(1, report(2, waits=True))
    alignment.received(2, report(1, waits=True))
    assert not alignment.everyone_waits_at(2)
    alignment.answered(2, stop=False)
    alignment.finish(2, 1)
    assert alignment.everyone_waits_at(2)  # rank 3 never reported, rank 2 has finished
    assert not alignment.everyone_waits_at(1)


def test_the_highest_index_that_nobody_waited_on() -> None:
    alignment = Alignment(2, 4)
    assert alignment.highest_free == 4
    alignment.received(0, report(5))
    alignment.received(0, report(6))
    alignment.received(1, report(5))
    alignment.received(0, report(7, waits=True))
    assert alignment.highest_free == 6
    alignment.answered(0, stop=False)
    assert alignment.highest_free == 7
    alignment.received(1, report(8, waits=True))
    alignment.answered(1, stop=True)
    assert alignment.highest_free == 7


@pytest.mark.parametrize("way", ["passes it", "finishes"])
def test_a_rank_that_others_gather_with_in_vain_is_named(way: str) -> None:
    alignment = Alignment(3, 0)
    reports = {rank: report(1, waits=True, reduce={"x": "sum"}) for rank in (0, 2)}
    for rank, gathered in reports.items():
        alignment.received(rank, gathered)
    assert left_out(alignment, 1, reports) is None  # rank 1 may still come
    if way == "passes it":
        alignment.received(1, report(1))
    else:
        alignment.finish(1, 0)
    found = left_out(alignment, 1, reports)
    assert found is not None
    rank, why = found
    assert rank == 1
    assert re.search(r"rank 1\b.*report 1\b.*0, 2.*reduce={'x': 'sum'}", why)


@pytest.mark.parametrize(("how", "value"), [("mean", 2.5), ("sum", 10), ("min", 1), ("max", 4)])
def test_reductions(how: str, value: float) -> None:
    reports = {rank: report(1, reduce={"x": how}, x=rank + 1) for rank in range(4)}
    assert reduce_metrics(reports) == {"x": value}


def test_weighted_reductions() -> None:
    """A rank without rows has no say, whatever number came of them."""
    rows = {0: (2.0, 1.0), 1: (math.nan, 0.0), 2: (4.0, 3.0)}
    for how, value in (("mean", 3.5), ("rms", math.sqrt(13.0))):
        reports = {}
        for rank, (number, weight) in rows.items():
            rules, weights = check_reduce({"x": number}, {"x": (how, weight)})
            reports[rank] = report(1, reduce=rules, weights=weights, x=number)
        assert reduce_metrics(reports) == {"x": pytest.approx(value)}
    nobody = {rank: report(1, reduce={"x": "mean"}, weights={"x": 0.0}, x=1.0) for rank in range(2)}
    assert math.isnan(reduce_metrics(nobody)["x"])


def test_ranks_that_did_not_report_a_key_are_left_out_of_its_reduction() -> None:
    asked = {"x": "mean"}
    reports = {0: report(1, reduce=asked, x=1.0), 1: report(1, reduce=asked), 2: report(1, reduce=asked, x=3.0)}
    assert reduce_metrics(reports) == {"x": 2.0}
    with pytest.raises(MetricError, match="'x'"):
        reduce_metrics({0: report(1, reduce=asked), 1: report(1, reduce=asked)})


def test_ranks_must_ask_for_the_same_reduction() -> None:
    with pytest.raises(MetricError, match="rank 1"):
        reduce_metrics({0: report(1, reduce={"x": "mean"}, x=1), 1: report(1, reduce={"x": "sum"}, x=1)})


@pytest.mark.parametrize(
    ("metrics", "reduce", "told"),
    [
        ({"x": 1}, {"x": "median"}, "median.*max, mean, min, rms, sum"),
        ({"x": "text"}, {"x": "mean"}, "'x'.*'text'"),
        ({"x": True}, {"x": "mean"}, "'x'.*True"),
        ({"x": [1]}, {"x": "mean"}, r"'x'.*\[1\]"),
        ({"x": 1}, {"x": ("sum", 2)}, "sum.*'mean', weight"),
        ({"x": 1}, {"x": ("mean", -1)}, "-1.*weight.*negative"),
        ({"x": 1}, {"x": ("mean", math.nan)}, "nan.*weight.*negative"),
        ({"x": 1}, {"x": ("mean",)}, "'mean', weight"),
        ({"x": 1}, {"x": ("mean", "many")}, "many.*'mean', weight"),
    ],
)
def test_what_cannot_be_reduced_is_refused(metrics: dict[str, Any], reduce: dict[str, Any], told: str) -> None:
    with pytest.raises(MetricError, match=told):
        check_reduce(metrics, reduce)


def test_a_key_that_this_rank_does_not_have_is_no_error() -> None:
    check_reduce({"y": 1}, {"x": "sum"})
