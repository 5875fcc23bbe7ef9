"""Where the session of a rank is kept: one for the whole process, or one for each thread that is a rank.

A worker usually has its process to itself, and all of its threads find its session. Several ranks of the inline engine
are threads of one process: each has a slot of its own, which the threads that it starts inherit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.air.session import SessionProtocol


class Slot:
    """Holds the session of a worker, and the process that it belongs to."""

    session: SessionProtocol | None = None
    owner_pid = 0
    called: SessionProtocol | None = None
    """Stands in while the driver calls a function in this worker: only the rank and the size are known."""


class _OfThread(threading.local):
    slot: Slot | None = None


_process = Slot()
_thread = _OfThread()


def here() -> Slot:
    """The slot of the rank that this thread belongs to."""
    return _thread.slot or _process


def is_in_thread() -> bool:
    """Whether this thread belongs to a rank that is one of several in its process."""
    return _thread.slot is not None


def role_of_thread() -> dict[str, str]:
    """Which rank that is, for `faults.py`; nothing if the whole process is one rank, or none."""
    session = None if _thread.slot is None else _thread.slot.session
    return {} if session is None else {"rank": str(session.world_rank)}


@contextmanager
def rank_in_thread() -> Iterator[None]:
    """In the block, this thread is a rank beside others in the same process, and so are the threads that it starts."""
    _thread.slot = Slot()
    with _inheritance:
        try:
            yield
        finally:
            _thread.slot = None


class _Inheritance:
    """While there are ranks in threads, a thread that is started belongs to the rank that starts it.

    Python has no hook for this before 3.14, so `threading.Thread.start` is replaced for that time.
    """

    def __init__(self) -> None:
        self._ranks = 0
        self._lock = threading.Lock()
        self._start: Callable[[threading.Thread], None] = threading.Thread.start
        self._is_underneath = False
        """Somebody else, such as a debugger, has put another one there since, which calls ours."""

    def __enter__(self) -> None:
        with self._lock:
            self._ranks += 1
            if self._is_underneath and threading.Thread.start is not self._start:
                return
            if self._ranks == 1 and threading.Thread.start is not _start_of_rank:
                self._start = threading.Thread.start
                setattr(threading.Thread, "start", _start_of_rank)  # noqa: B010

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._ranks -= 1
            if self._ranks:
                return
            self._is_underneath = threading.Thread.start not in (_start_of_rank, self._start)
            if threading.Thread.start is _start_of_rank:
                setattr(threading.Thread, "start", self._start)  # noqa: B010  (mypy knows that it is a method)

    def start(self, thread: threading.Thread) -> None:
        self._start(thread)


_inheritance = _Inheritance()


def _start_of_rank(self: threading.Thread, *arguments: Any) -> None:
    slot = _thread.slot
    if slot is not None:
        run = self.run

        def run_for_rank() -> None:
            _thread.slot = slot
            run()

        self.run = run_for_rank  # type: ignore[method-assign]
    _inheritance.start(self)
