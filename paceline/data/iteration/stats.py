"""Where the time of an iteration went."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from paceline.data.stage_times import StageTimes


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
