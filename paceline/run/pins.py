"""Checkpoints that other runs are copying: deleting one waits until nobody copies it any more.

Copies are made in threads of the runs that take them over, and may outlast the run that they are made of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial


class Pins:
    """Who copies which checkpoint of a run, and which of them are to be deleted afterwards. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[tuple[int, object]] = set()
        """Numbers, each with a token: several may copy the same one."""
        self._unwanted: set[int] = set()
        """What is to be deleted once it is released."""
        self._delete: Callable[[int], None] | None = None
        """Deletes a checkpoint when the run is over; None while the run sees to it itself."""

    def pin(self, number: int) -> Callable[[], None]:
        """Keep a checkpoint until the function that is returned has been called."""
        pin = (number, object())
        with self._lock:
            self._held.add(pin)
        return partial(self._release, pin)

    def _release(self, pin: tuple[int, object]) -> None:
        with self._lock:
            self._held.discard(pin)
            delete = self._delete
            released = [] if delete is None else self._take_released()
        for number in released:
            assert delete is not None
            delete(number)

    def put_off(self, number: int) -> None:
        """Delete a checkpoint when nobody copies it any more."""
        with self._lock:
            self._unwanted.add(number)

    def released(self) -> list[int]:
        """What is to be deleted now; each is named once."""
        with self._lock:
            return self._take_released()

    def _take_released(self) -> list[int]:
        free = sorted(self._unwanted - {number for number, _ in self._held})
        self._unwanted.difference_update(free)
        return free

    def outlast(self, delete: Callable[[int], None]) -> list[int]:
        """The run is over: from here on, whoever releases a checkpoint last deletes it. Returns which are copied."""
        with self._lock:
            self._delete = delete
            return sorted(self._unwanted)
