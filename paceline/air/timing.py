"""What shards, loaders and frameworks tell the session about a training loop's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class BatchClock(Protocol):
    """Measures for how long a training loop waits, for data above all. Times are those of `time.perf_counter()`."""

    def took_batch(self, asked: float, given: float) -> None:
        """The loop has asked for a batch and been given it."""

    def waited_for_data(self, seconds: float) -> None:
        """The loop has waited for rows that are not a batch."""

    def measure_collectives(self, ask: Callable[[int], float | None]) -> None:
        """`ask` is given the number of steps so far. It says for how long the rank waited in the collective operations
        of a recent one, in seconds; None if it knows nothing new."""
