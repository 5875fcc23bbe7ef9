"""SIGTERM and SIGUSR1 in a worker: the driver is told, and decides when all ranks stop.

A handler of Python's runs only when the main thread is between two bytecodes. It may hold any lock then, and it may
not get there for minutes, in a collective for example. So the handler does nothing but write to a pipe, the system
writes to the same pipe as soon as the signal comes, and a thread at the other end does the talking.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from paceline.run.decisions import PREEMPTION_SIGNALS

_HANDLED = 128
"""What the handler adds to the number. The system writes the plain one, whoever's handler is called."""


class _Ears:
    """Of this process: the pipe, and who is told."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        self._tell = tell
        self._is_closed = False
        self._mask = threading.local()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """In place of the system's handler, which would end the process."""
        with contextlib.suppress(OSError):
            os.write(self.writing, bytes([_HANDLED + number]))

    def listen(self) -> None:
        """In a thread: pass on each of our signals once, unless the user has a handler for it by now."""
        told: set[int] = set()
        while numbers := os.read(self.reading, 256):
            for written in numbers:
                number = written % _HANDLED
                if number not in PREEMPTION_SIGNALS or number in told:
                    continue
                if written > _HANDLED or signal.getsignal(number) == self.on_signal:
                    told.add(number)
                    with contextlib.suppress(OSError):  # The driver is gone; others notice that.
                        self._tell(number)

    def before_fork(self) -> None:
        """A signal that comes to the child before the child has let go of the pipe would be heard by its parent."""
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, PREEMPTION_SIGNALS)

    def after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def leave_to_child(self) -> None:
        """A forked child, such as one that loads data, is ended by these signals, and its parent hears nothing."""
        if not self._is_closed:  # Otherwise it is a child of such a child.
            self._is_closed = True
            for number in PREEMPTION_SIGNALS:
                if signal.getsignal(number) == self.on_signal:
                    signal.signal(number, signal.SIG_DFL)
            before = signal.set_wakeup_fd(-1)
            if before != self.writing:
                signal.set_wakeup_fd(before)
            os.close(self.reading)
            os.close(self.writing)
        self.after_fork()


def is_heard(number: int) -> bool:
    """Whether the driver is told of this signal to this process."""
    return isinstance(getattr(signal.getsignal(number), "__self__", None), _Ears)


def hear_signals(tell: Callable[[int], None]) -> None:
    """Call `tell` with the number of each signal that asks this process to end, in another thread.

    Signals for which there is a handler stay as they are: the user's own come first. In a thread of the driver's
    process there is nothing to do, as the driver hears them.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    numbers = [number for number in PREEMPTION_SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    if not numbers:
        return
    ears = _Ears(tell)
    for number in numbers:
        signal.signal(number, ears.on_signal)
        signal.siginterrupt(number, False)  # System calls of libraries that do not expect an interruption continue.
    before = signal.set_wakeup_fd(ears.writing, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
    os.register_at_fork(before=ears.before_fork, after_in_parent=ears.after_fork, after_in_child=ears.leave_to_child)
    _thread.start_new_thread(ears.listen, ())
