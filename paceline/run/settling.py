"""How long the ranks of a failed attempt get to say what they saw: the first to speak is not always the cause."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection

SETTLE_S = 0.15
"""How long the other ranks' failures are collected after the first: peers of a dead rank
fail within milliseconds, and what they say is not the cause."""
ECHO_SETTLE_S = 1.0
"""The same while there are only echoes: the rank that failed may still be in its `finally` blocks, from which
its peers heard that it is leaving."""
HEARTBEAT_MARGIN_S = 5.0
"""How much longer than a heartbeat may take it lasts until a machine that is cut off is given up."""


class Settling:
    """Of one attempt.

    A machine that is cut off closes no connection. Its peers may fail before the heartbeat finds out, so as long as a
    rank on another machine does not even show where it is, it is waited for until the heartbeat must have found out.
    """

    def __init__(self, heartbeat_s: float | None) -> None:
        self._heartbeat_s = heartbeat_s
        self._at = float("inf")
        self._at_the_latest = float("inf")
        """While a rank is out of reach."""
        self._awaited: set[int] = set()
        """Ranks on other machines that have not shown where they are since the first echo."""

    def cause_found(self) -> None:
        """A rank has failed by itself."""
        self._at = min(self._at, time.monotonic() + SETTLE_S)
        self._awaited.clear()

    def echo_heard(self, rank: int, far: Collection[int], ask: Callable[[], Collection[int]]) -> None:
        """A rank has failed, as it seems because of another. `far` are those on other machines that still run.

        The first time, `ask` is called in another thread, as it may take a while: it gives those that answer.
        """
        now = time.monotonic()
        is_first = self._at == float("inf")
        if is_first or rank in self._awaited:
            self._at = now + ECHO_SETTLE_S
        if is_first and far and self._heartbeat_s is not None:
            self._at_the_latest = now + self._heartbeat_s + HEARTBEAT_MARGIN_S
            self._awaited = set(far)
            threading.Thread(target=self._look_for, args=(ask,), name="paceline-in-reach", daemon=True).start()

    def _look_for(self, ask: Callable[[], Collection[int]]) -> None:
        with contextlib.suppress(Exception):  # The workers may be ended meanwhile.
            self._awaited.difference_update(ask())

    def at(self, running: Collection[int]) -> float:
        """When enough is known (monotonic time), with these ranks still running; infinite before the first failure."""
        return self._at_the_latest if not self._awaited.isdisjoint(running) else self._at
