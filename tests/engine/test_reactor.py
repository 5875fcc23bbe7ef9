"""One wait for several threads: no event is lost, and nobody sleeps through one that another thread served."""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from paceline.engine import reactor as reactor_module
from paceline.engine.inline import InlineEngine
from paceline.engine.reactor import Reactor


@pytest.fixture
def reactor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reactor]:
    monkeypatch.setattr(reactor_module, "MAX_WAIT_S", 30.0)  # what is missed makes a test hang, not just slow
    made = Reactor()
    yield made
    made.close()


class Pipe:
    """Something to wait for: counts what arrives."""

    def __init__(self, reactor: Reactor) -> None:
        self.read_end, self.write_end = os.pipe()
        self.received = 0
        reactor.add(self.read_end, self._on_data)

    def _on_data(self, mask: int) -> None:
        self.received += len(os.read(self.read_end, 100))

    def send(self) -> None:
        os.write(self.write_end, b"x")


def test_threads_that_wait_for_different_things_each_hear_of_theirs(reactor: Reactor) -> None:
    pipes = [Pipe(reactor) for _ in range(4)]
    turns = 50

    def wait_for(pipe: Pipe) -> None:
        for turn in range(turns):
            while pipe.received <= turn:
                reactor.run_once(30.0)
            if turn + 1 < turns:
                pipe.send()

    threads = [threading.Thread(target=wait_for, args=[pipe]) for pipe in pipes]
    for thread in threads:
        thread.start()
    for pipe in pipes:
        pipe.send()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert [pipe.received for pipe in pipes] == [turns] * 4


def test_wake_ends_a_wait_for_groups() -> None:
    engine, ended = InlineEngine(), threading.Event()

    def wait() -> None:
        engine.wait([], 30.0)
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    engine.wake()
    assert ended.wait(20)
    thread.join()
    engine.wake()  # nobody waits: the next wait ends at once
    assert engine.wait([], 30.0) == []
    engine.close()


def test_a_wait_of_no_time_does_not_wait_for_the_thread_that_serves(reactor: Reactor) -> None:
    serving = threading.Thread(target=reactor.run_once, args=[30.0])
    serving.start()
    reactor.run_once(0.0)
    reactor.wake()
    serving.join(timeout=20)
    assert not serving.is_alive()


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th place in the reactor at which Python may call a signal handler."""

    PLACES = ("CALL", "RESUME", "JUMP_BACKWARD")

    def __init__(self, number: int) -> None:
        self._left = number
        self._last = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != reactor_module.__file__:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            may_interrupt = self._last in self.PLACES
            self._last = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if may_interrupt:
                self._left -= 1
                if self._left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_place_leaves_a_reactor_that_serves(reactor: Reactor) -> None:
    pipe = Pipe(reactor)
    interrupts = 0
    while True:
        pipe.send()
        sys.settrace(InterruptAt(interrupts))
        try:
            reactor.run_once(0.0)
        except KeyboardInterrupt:
            interrupts += 1
        else:
            break
        finally:
            sys.settrace(None)
        pipe.send()
        received = pipe.received
        reactor.run_once(0.0)
        assert pipe.received > received, f"interrupted at place {interrupts}, it no longer serves"
    assert interrupts > 5
