"""Clocks of workers on other machines."""

from __future__ import annotations

import time

import pytest

from paceline.engine.protocol import ClockOffsets, clocks

HUNDRED_SECONDS = 100_000_000_000


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the clocks of this process show."""
    shown = {"monotonic": 1_000_000, "wall": 5_000_000}
    monkeypatch.setattr(time, "monotonic_ns", lambda: shown["monotonic"])
    monkeypatch.setattr(time, "time_ns", lambda: shown["wall"])
    return shown


def worker_shows(times: dict[str, int], monotonic: int, wall: int) -> bytes:
    before = dict(times)
    times.update(monotonic=monotonic, wall=wall)
    shown = clocks()
    times.update(before)
    return shown


def test_the_quickest_message_tells_best_how_far_clocks_are_apart(times: dict[str, int]) -> None:
    offsets = ClockOffsets()
    for delay in (3000, 10, 500):
        ahead = worker_shows(
            times, times["monotonic"] + HUNDRED_SECONDS - delay, times["wall"] - HUNDRED_SECONDS - delay
        )
        offsets.note(ahead)
    assert offsets.monotonic_ns == -HUNDRED_SECONDS + 10
    assert offsets.wall_ns == HUNDRED_SECONDS + 10
    assert offsets.drivers_ns(HUNDRED_SECONDS + 7) == 17
    assert offsets.drivers_ns(HUNDRED_SECONDS + 5_000_000) == times["monotonic"], "not after it was heard of"


def answer(times: dict[str, int], offsets: ClockOffsets, ahead: int, there: int, back: int) -> bool:
    """Ask a worker whose clocks are ahead; the question takes `there`, the answer `back`. False if none is asked."""
    question = offsets.question()
    if question is None:
        return False
    times["monotonic"] += there
    times["wall"] += there
    shown = worker_shows(times, times["monotonic"] + ahead, times["wall"] + ahead) + question
    times["monotonic"] += back
    times["wall"] += back
    offsets.note(shown)
    return True


def test_a_driver_that_reads_late_still_knows_which_failure_came_first(times: dict[str, int]) -> None:
    """Of a question and its answer, both directions count: the truth lies between the quickest of each."""
    hurt, quick = ClockOffsets(), ClockOffsets()
    hurt.note(worker_shows(times, times["monotonic"] + HUNDRED_SECONDS - 9000, times["wall"] + HUNDRED_SECONDS - 9000))
    quick.note(worker_shows(times, times["monotonic"] - HUNDRED_SECONDS, times["wall"] - HUNDRED_SECONDS))
    for there, back in ((50, 8000), (3000, 4000)):
        assert answer(times, hurt, HUNDRED_SECONDS, there, back)
        assert answer(times, quick, -HUNDRED_SECONDS, 10, 10)
    assert hurt.monotonic_ns == -HUNDRED_SECONDS + (4000 - 50) // 2
    assert hurt.wall_ns == -HUNDRED_SECONDS + (4000 - 50) // 2
    first = 20_000
    assert hurt.drivers_ns(first + HUNDRED_SECONDS) < quick.drivers_ns(first + 3000 - HUNDRED_SECONDS)


def test_questions_are_asked_one_at_a_time_until_the_answers_are_quick(times: dict[str, int]) -> None:
    slow, quick = ClockOffsets(), ClockOffsets()
    for offsets in (slow, quick):
        assert offsets.note(worker_shows(times, times["monotonic"] - 100, times["wall"]))
    delay = 2 * ClockOffsets.CLOSE_NS
    assert sum(answer(times, slow, 0, delay, delay) for _ in range(1000)) == ClockOffsets.MOST
    assert sum(answer(times, quick, 0, 10, 10) for _ in range(1000)) == ClockOffsets.ENOUGH
    times["monotonic"] += ClockOffsets.WINDOW_NS + 1
    quick.note(worker_shows(times, times["monotonic"], times["wall"]))
    assert quick.question() is not None, "clocks drift"
    assert quick.question() is None


def test_before_anything_is_known_a_failure_happened_when_it_was_heard_of(times: dict[str, int]) -> None:
    offsets = ClockOffsets()
    assert offsets.drivers_ns(HUNDRED_SECONDS) == times["monotonic"]
    assert not offsets.note(b"")
    assert offsets.drivers_ns(HUNDRED_SECONDS) == times["monotonic"]


def test_clocks_that_drift_or_are_set_are_followed(times: dict[str, int]) -> None:
    """A run of days: the quickest message of long ago says little about the clocks of today."""
    offsets = ClockOffsets()
    offsets.note(worker_shows(times, times["monotonic"], times["wall"]))
    for _ in range(3):
        for clock in times:
            times[clock] += ClockOffsets.WINDOW_NS + 1
        offsets.note(worker_shows(times, times["monotonic"] - 7_000, times["wall"] - HUNDRED_SECONDS))
    assert offsets.monotonic_ns == 7_000
    assert offsets.wall_ns == HUNDRED_SECONDS
