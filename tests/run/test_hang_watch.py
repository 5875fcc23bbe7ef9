"""Which ranks hang, and how their stacks are shown."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from paceline.run import at_work
from paceline.run.at_work import WARN_AFTER_S, HangWatch, stacks_text


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def look_for(
        self, watch: HangWatch, seconds: float, *, behind: list[int], excused: tuple[int, ...] = ()
    ) -> tuple[set[int], set[int]]:
        """Look every half second as a driver does; all ranks that were warned about, all that hang."""
        warned: set[int] = set()
        hung: set[int] = set()
        for _ in range(int(seconds / 0.5)):
            self.now += 0.5
            warn, hang = watch.look(behind, [0, 1], excused)
            warned.update(warn)
            hung.update(hang)
        return warned, hung


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(at_work, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_a_rank_that_is_behind_is_warned_about_and_hangs_after_its_time(clock: Clock) -> None:
    watch = HangWatch(2, WARN_AFTER_S + 10)
    assert clock.look_for(watch, WARN_AFTER_S, behind=[1]) == (set(), set())
    assert clock.look_for(watch, 5, behind=[1]) == ({1}, set())
    assert clock.look_for(watch, 10, behind=[1]) == (set(), {1})


@pytest.mark.parametrize("stall", [1.5, 4.0, 60.0])
def test_a_time_in_which_the_driver_stood_still_counts_one_second(clock: Clock, stall: float) -> None:
    watch = HangWatch(2, 10.0)
    clock.now += stall
    assert watch.look([1], [0, 1]) == ([], [])
    assert clock.look_for(watch, 8.5, behind=[1]) == (set(), set())
    assert clock.look_for(watch, 1, behind=[1]) == (set(), {1})


def test_a_driver_that_is_always_slow_notices_a_hang(clock: Clock) -> None:
    watch = HangWatch(2, 10.0)
    looks = 0
    while not watch.look([1], [0, 1])[1]:
        clock.now += 1.5
        looks += 1
    assert looks == 11


def test_an_excused_rank_does_not_hang_and_its_time_starts_anew(clock: Clock) -> None:
    watch = HangWatch(2, 10.0)
    assert clock.look_for(watch, 2 * WARN_AFTER_S, behind=[1], excused=(0, 1)) == (set(), set())
    assert clock.look_for(watch, 9.5, behind=[1]) == (set(), set())
    assert clock.look_for(watch, 1, behind=[1]) == (set(), {1})


def test_another_rank_still_hangs_while_one_is_excused(clock: Clock) -> None:
    watch = HangWatch(2, 10.0)
    assert clock.look_for(watch, 11, behind=[1], excused=(1,)) == (set(), {0})


def test_the_ranks_that_are_looked_for_come_first() -> None:
    text = stacks_text({0: "zero", 1: "one", 2: "two"}, first=[2])
    assert text == "-- rank 2 --\ntwo\n-- rank 0 --\nzero\n-- rank 1 --\none"


def test_a_rank_whose_stack_could_not_be_had_is_left_out() -> None:
    assert stacks_text({0: "zero"}, first=[1]) == "-- rank 0 --\nzero"


def test_a_rank_that_runs_on_after_another_has_returned_is_told_about_with_the_reason(clock: Clock) -> None:
    watch = HangWatch(2, None)
    told = []
    for _ in range(int((WARN_AFTER_S + 2) / 0.5)):
        clock.now += 0.5
        told.append(watch.find([1], {0}, [3, 3]))
    stall = next(each for each in told if each is not None)
    assert stall.ranks == [1]
    assert not stall.is_error
    assert re.search(r"rank\(s\) 0 .*returned", stall.text)
    assert "FailureConfig(hang_timeout_s=...)" in stall.text
