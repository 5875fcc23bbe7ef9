"""How ranks that make no progress are told about."""

from __future__ import annotations

import pytest

from paceline.run.hang_words import Scene, ranks_text, returned_early, stacks_text
from paceline.run.positions import Frame, Position


def at(line: int, waits_in: str = "") -> Position:
    return Position(Frame("train.py", str(line), "train"), waits_in)


def scene(*positions: Position, returned: tuple[int, ...] = ()) -> Scene:
    ranks = [rank for rank in range(len(positions)) if rank not in returned]
    return Scene(ranks, returned, [7] * len(positions), dict(enumerate(positions)), {})


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([1, 0], "ranks 0, 1"), ([0, 2, 3, 4, 9], "ranks 0, 2-4, 9"), (range(64), "ranks 0-63")],
)
def test_ranks_text(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def test_ranks_that_do_the_same_are_told_of_together() -> None:
    waits = at(20, "all_reduce")
    told = scene(waits, at(12), waits, waits).told([1])
    assert told == (
        "rank 1 is at train.py:12, in train, after report 7; ranks 0, 2, 3 wait in all_reduce at train.py:20, after "
        "report 7"
    )


def test_the_rank_in_another_operation_than_most_never_arrived() -> None:
    waits = at(20, "all_reduce")
    assert scene(waits, at(30, "barrier"), waits).never_arrived([0, 1, 2]) == [1]
    assert scene(waits, at(21, "all_reduce"), waits).never_arrived([0, 1, 2]) == [1]
    assert scene(waits, at(12), at(30, "barrier")).never_arrived([0, 1, 2]) == [1]


def test_two_ranks_in_two_operations_are_told_about_both() -> None:
    both = scene(at(20, "all_reduce"), at(30, "barrier"))
    assert both.never_arrived([0, 1]) == [0, 1]
    assert both.told([0, 1]).startswith("the ranks are in different collective operations: rank 0 waits in all_reduce")


def test_a_rank_that_returned_while_another_waited() -> None:
    text = returned_early(1, 7, 0, at(20, "all_reduce"))
    assert text.startswith("rank 1 returned after report 7 while rank 0 waited in all_reduce at train.py:20. ")
    assert returned_early(1, 0, 0, Position(None)).startswith(
        "rank 1 returned before its first report while rank 0 waited for it. "
    )


def test_the_ranks_that_are_looked_for_come_first() -> None:
    text = stacks_text({0: "zero", 1: "one", 2: "two"}, first=[2])
    assert text == "-- rank 2 --\ntwo\n-- rank 0 --\nzero\n-- rank 1 --\none"


def test_a_rank_whose_stack_could_not_be_had_is_left_out() -> None:
    assert stacks_text({0: "zero"}, first=[1]) == "-- rank 0 --\nzero"
