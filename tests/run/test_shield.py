"""Blocks that an interrupt does not cut in two."""

from __future__ import annotations

import signal
import threading

import pytest

from paceline.run.drive import handled
from paceline.run.shield import Shield, shield


class Starting:
    """A run whose workers are being started: signals interrupt it."""

    starting = True

    def request_stop(self, signal_number: int) -> None:
        raise AssertionError("there is nothing to stop yet")


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    done: list[str] = []

    def work() -> None:
        with shield:
            with shield:
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            done.append("outer")
        done.append("after")

    with pytest.raises(KeyboardInterrupt), handled(Starting()):
        work()
    assert done == ["inner", "outer"]


def test_outside_of_a_block_it_is_raised_where_it_comes() -> None:
    with pytest.raises(KeyboardInterrupt), handled(Starting()):
        signal.raise_signal(signal.SIGINT)


def test_it_is_raised_once() -> None:
    guard = Shield()
    with pytest.raises(SystemExit), guard:
        guard.interrupt(SystemExit(143))
    with guard:
        pass


def test_other_threads_do_not_hold_it_up() -> None:
    guard = Shield()
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with guard:
            entered.set()
            assert leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(30)
    with pytest.raises(KeyboardInterrupt):
        guard.interrupt(KeyboardInterrupt())
    leave.set()
    thread.join()
