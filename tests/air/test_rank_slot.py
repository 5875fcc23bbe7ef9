"""Threads that a rank starts belong to it, also if somebody else replaces `Thread.start`."""

from __future__ import annotations

import threading

import pytest

from paceline.air import rank_slot
from paceline.air.rank_slot import rank_in_thread


def inherits() -> bool:
    found: list[bool] = []
    with rank_in_thread():
        thread = threading.Thread(target=lambda: found.append(rank_slot.is_in_thread()))
        thread.start()
        thread.join()
    return found[0]


def test_a_wrapper_that_stays_does_not_start_threads_in_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = threading.Thread.start
    with rank_in_thread():
        ours = threading.Thread.start

        def wrapper(thread: threading.Thread) -> None:
            ours(thread)

        monkeypatch.setattr(threading.Thread, "start", wrapper)
    assert inherits()
    assert inherits()
    monkeypatch.setattr(threading.Thread, "start", plain)
    assert inherits()
    assert threading.Thread.start is plain
