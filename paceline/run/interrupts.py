"""Ctrl-C, SIGTERM and SIGHUP while a run is under way.

The first signal asks for a graceful stop, the second ends everything at once. While
workers are being started there is nothing to stop gracefully: the signal interrupts.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interruptible(Protocol):
    """What a signal needs to know of a run."""

    @property
    def starting(self) -> bool: ...

    def request_stop(self, signal_number: int) -> None: ...


@contextmanager
def handled(run: Interruptible) -> Iterator[None]:
    """Route signals to the run. Only the main thread may do this; elsewhere signals stay as they are.

    A signal that is ignored (SIGHUP under nohup) stays ignored, and handlers of the user's
    own for SIGTERM or SIGHUP are left in place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if run.starting or received > 1:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        run.request_stop(number)

    previous = {}
    for number in _SIGNALS:
        current = signal.getsignal(number)
        if current in (signal.SIG_DFL, signal.default_int_handler):
            previous[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
