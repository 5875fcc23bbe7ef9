"""How long each stage of a plan took, summed over the threads that ran it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.data.block import Chunk


class StageTimes:
    """Seconds by stage, in the order in which stages were first seen."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[StageTimes], tuple[()]]:
        """Datasets travel to workers; what was measured here stays here."""
        return StageTimes, ()

    def add(self, stage: str, seconds: float) -> None:
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


class TimedStage:
    """A stream of chunks that notes how long each one took to make, without the time of the stages before it."""

    def __init__(self, chunks: Iterator[Chunk], stage: str, times: StageTimes, before: TimedStage | None) -> None:
        self._chunks = chunks
        self._stage = stage
        self._times = times
        self._before = before
        self.total = 0.0
        """Its own time and that of the stages before it."""

    def __iter__(self) -> TimedStage:
        return self

    def __next__(self) -> Chunk:
        before = self._before.total if self._before is not None else 0.0
        began = time.perf_counter()
        try:
            return next(self._chunks)
        finally:
            spent = time.perf_counter() - began
            self.total += spent
            earlier = (self._before.total if self._before is not None else 0.0) - before
            self._times.add(self._stage, max(0.0, spent - earlier))
