"""Where the time of a dataset went: per stage of its plan, and per iteration over its batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
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


@dataclass
class IterationStats:
    """Times of one pass over the data, in seconds of the thread that consumes it."""

    source: str = ""
    rows: int = 0
    batches: int = 0
    began: float = field(default_factory=time.perf_counter)
    total_s: float = 0.0
    read_wait_s: float = 0.0
    """Waiting for rows to be read and transformed."""
    convert_s: float = 0.0
    """Cutting and converting batches (reading them included where there is no reading ahead)."""
    user_s: float = 0.0
    """The consumer's own work between two batches."""
    first_batch_s: float | None = None
    stages: StageTimes = field(default_factory=StageTimes)
    """Reading and each operation, in seconds of the threads that read ahead."""
    notes: list[str] = field(default_factory=list)

    def to_string(self) -> str:
        """For people."""
        if not self.batches:
            return "\n".join([f"{self.source}: nothing has been iterated yet", *self.notes])
        total = self.total_s or time.perf_counter() - self.began
        rate = f", {self.rows / total:,.0f} rows/s" if total > 0 else ""
        lines = [
            f"{self.source}",
            f"  {self.rows:,} rows in {self.batches:,} batches, {total:.3f} s{rate}; "
            f"first batch after {self.first_batch_s or 0:.3f} s",
            f"  waiting for rows      {self.read_wait_s:9.3f} s  {_share(self.read_wait_s, total)}",
            f"  cutting, converting   {self.convert_s:9.3f} s  {_share(self.convert_s, total)}",
            f"  your code             {self.user_s:9.3f} s  {_share(self.user_s, total)}",
        ]
        if self.stages.seconds:
            lines.append("  meanwhile, in the reading threads:")
            lines += [f"    {stage:<32} {seconds:9.3f} s" for stage, seconds in self.stages.seconds.items()]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def _share(part: float, total: float) -> str:
    return f"{100 * part / total:5.1f} %" if total > 0 else ""
