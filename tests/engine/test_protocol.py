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


def test_before_anything_is_known_a_failure_happened_when_it_was_heard_of(times: dict[str, int]) -> None:
    offsets = ClockOffsets()
    assert offsets.drivers_ns(HUNDRED_SECONDS) == times["monotonic"]
    offsets.note(b"")
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
