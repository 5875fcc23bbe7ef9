"""Signals while a run is under way; what they do to real runs is in the fault tests."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from paceline.run.drive import handled

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
ALL = [*SIGNALS, signal.SIGUSR1]


@dataclass
class FakeRun:
    starting: bool = False
    requests: list[int] = field(default_factory=list)

    def request_stop(self, signal_number: int) -> None:
        self.requests.append(signal_number)


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ALL}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ALL)
def test_the_first_signal_asks(number: signal.Signals) -> None:
    run = FakeRun()
    with handled(run):
        signal.raise_signal(number)
    assert run.requests == [number]


@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_ends_it(second: signal.Signals) -> None:
    run = FakeRun()
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught, handled(run):  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(second)
    assert run.requests == [signal.SIGINT]
    if second != signal.SIGINT:
        assert isinstance(caught.value, SystemExit)
        assert caught.value.code == 128 + second


def test_sigusr1_announces_a_sigterm_and_ends_nothing_by_itself() -> None:
    """Batch systems send it some minutes before the SIGTERM: that one is the first that counts."""
    run = FakeRun()
    with pytest.raises(SystemExit) as caught, handled(run):  # noqa: PT012
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        assert run.requests == [signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", ALL)
def test_while_workers_start_the_first_signal_interrupts(number: signal.Signals) -> None:
    run = FakeRun(starting=True)
    with pytest.raises((KeyboardInterrupt, SystemExit)), handled(run):
        signal.raise_signal(number)
    assert run.requests == []


def test_handlers_come_back_whatever_happens() -> None:
    with pytest.raises(ZeroDivisionError), handled(FakeRun()):
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_ignored_signals_and_the_users_own_handlers_stay() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: heard.append(number))
    run = FakeRun()
    with handled(run):
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
            signal.raise_signal(number)
    assert heard == [signal.SIGTERM, signal.SIGUSR1]
    assert run.requests == []


def test_outside_the_main_thread_signals_stay_as_they_are() -> None:
    seen: list[object] = []

    def work() -> None:
        with handled(FakeRun()):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
