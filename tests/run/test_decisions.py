"""What deciders say, and which of it counts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from paceline.run.decisions import (
    CONTINUE,
    AllDeciders,
    Change,
    Decider,
    Decision,
    Donor,
    Restart,
    Stop,
    StopperDecider,
    StopRequest,
    Wait,
    strongest,
)
from paceline.run.stoppers import DictStopper, MaximumIterationStopper, TimeoutStopper


class Says(Decider):
    """Always the same; remembers which rows it was shown."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.seen: list[int] = []

    def after_row(self, index: int, row: dict[str, Any], has_checkpoint: bool) -> Decision:
        self.seen.append(index)
        return self.decision


@pytest.mark.parametrize("order", list(itertools.permutations([CONTINUE, Wait(), Restart(), Stop()])))
def test_the_strongest_decision_counts_whoever_says_it(order: tuple[Decision, ...]) -> None:
    left = list(order)
    for expected in (Stop(), Restart(), Wait(), CONTINUE):
        assert strongest(left) == expected
        left.remove(expected)
    assert strongest([]) == CONTINUE


def test_every_decider_sees_every_row() -> None:
    deciders = [Says(Stop()), Says(CONTINUE), Says(Wait())]
    assert AllDeciders(*deciders).after_row(4, {}, False) == Stop()
    assert [decider.seen for decider in deciders] == [[4]] * 3


def test_a_stopper_decides_after_rows_and_between_them() -> None:
    decider = StopperDecider(MaximumIterationStopper(2), "a")
    assert decider.may_decide
    assert [decider.after_row(index, {"training_iteration": index}, False) for index in (1, 2)] == [CONTINUE, Stop()]
    assert decider.between_rows() == CONTINUE
    late = StopperDecider(TimeoutStopper(1e-9), "a")
    late.between_rows()
    assert late.between_rows() == Stop()


def test_what_a_stopper_missed_is_remarked_at_the_end() -> None:
    decider = AllDeciders(StopRequest(), StopperDecider(DictStopper({"losss": 1}), "a"))
    decider.after_row(1, {"training_iteration": 1, "loss": 2}, False)
    remark = decider.remark({"loss": 2})
    assert remark is not None
    assert "losss" in remark


def test_a_stop_that_was_asked_for_does_not_depend_on_rows() -> None:
    request = StopRequest()
    assert (request.between_rows(), request.status) == (CONTINUE, "finished")
    request.signal = 2
    assert (request.between_rows(), request.status) == (Stop(), "interrupted")
    assert request.after_row(1, {}, False) == CONTINUE  # ranks may have passed this row
    assert StopRequest(wanted=True).status == "finished"
    assert StopRequest(wanted=True, interrupted=True).status == "interrupted"


def test_a_change_that_is_dropped_lets_the_donor_go() -> None:
    released: list[str] = []
    donor = Donor("other", None, {}, lambda: released.append("other"))  # type: ignore[arg-type]
    Change(donor=donor).drop()
    Change().drop()
    assert released == ["other"]
