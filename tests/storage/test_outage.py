"""What waits for a store that is out of reach, and for how long."""

from __future__ import annotations

import threading

import pytest

from paceline.air.errors import StorageError
from paceline.storage import outage
from paceline.storage.outage import StoreAwayError, outlast


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 0.0)


class Away:
    """Out of reach for so many calls."""

    def __init__(self, calls: int, then: Exception | None = None) -> None:
        self.left = calls
        self.then = then
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self.left -= 1
        if self.left >= 0:
            raise StoreAwayError("no connection")
        if self.then is not None:
            raise self.then


def test_it_is_outlasted() -> None:
    away = Away(5)
    outlast(away, 60.0, threading.Event())
    assert away.calls == 6


def test_without_patience_it_is_an_error_at_once() -> None:
    away = Away(5)
    with pytest.raises(StoreAwayError, match="no connection"):
        outlast(away, 0.0, threading.Event())
    assert away.calls == 1


def test_what_the_store_refuses_is_not_tried_again() -> None:
    away = Away(2, StorageError("forbidden"))
    with pytest.raises(StorageError, match="forbidden"):
        outlast(away, 60.0, threading.Event())
    assert away.calls == 3


def test_it_has_an_end() -> None:
    with pytest.raises(StorageError, match="out of reach for 0 s"):
        outlast(Away(1_000_000), 0.05, threading.Event())


def test_who_gives_up_does_not_wait() -> None:
    given_up = threading.Event()
    given_up.set()
    away = Away(5)
    with pytest.raises(StoreAwayError):
        outlast(away, 60.0, given_up)
    assert away.calls == 1
