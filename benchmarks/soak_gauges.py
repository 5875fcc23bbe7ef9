"""What must not grow while a driver works for hours: its memory, descriptors, threads, processes and files."""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from benchmarks import processes

MOST_PAIRS = 200
"""Samples that a slope is taken from: more are thinned out."""


@dataclass(frozen=True)
class Gauge:
    """One quantity and how much it may grow during the measured part of a soak."""

    name: str
    unit: str
    slack: float
    """Allowed whatever the level is: allocators and caches are not exact."""
    share: float = 0.05
    """Allowed growth as a part of the level."""

    def limit(self, level: float) -> float:
        return max(self.slack, self.share * level)


GAUGES = (
    Gauge("memory", "MB", 10.0),
    Gauge("descriptors", "", 2.0),
    Gauge("threads", "", 2.0),
    Gauge("processes", "", 1.0),
    Gauge("disk", "MB", 1.0),
)


@dataclass(frozen=True)
class Sample:
    """All gauges at one moment between two rounds."""

    seconds: float
    values: tuple[float, ...]


def sample(seconds: float, scratch: Path) -> Sample:
    """Look at this process. Garbage is collected first: what waits for the collector is not a leak."""
    gc.collect()
    own = os.getpid()
    values = (
        processes.resident_mb(),
        float(len(os.listdir("/proc/self/fd")) - 1),  # one is that of the listing
        float(len(os.listdir("/proc/self/task"))),
        float(len(processes.tree(own)) - 1),
        disk_mb(scratch),
    )
    return Sample(seconds, values)


def disk_mb(folder: Path) -> float:
    """What all files below a directory take; those that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total / 2**20


@dataclass(frozen=True)
class Trend:
    """How one gauge developed after the warm-up."""

    gauge: Gauge
    first: float
    last: float
    highest: float
    growth: float
    """Over the measured time, by the slope."""
    per_hour: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.gauge.limit(self.first)


def trends(samples: Sequence[Sample], warm_up_s: float) -> list[Trend]:
    """The slope is the median of the slopes of all pairs of samples (Theil and Sen): single peaks do not count."""
    measured = [each for each in samples if each.seconds >= warm_up_s]
    if len(measured) < 10:
        raise ValueError(f"only {len(measured)} samples after the warm-up: soak for longer")
    thinned = measured[:: max(1, len(measured) // MOST_PAIRS)]
    window = measured[-1].seconds - measured[0].seconds
    found = []
    for number, gauge in enumerate(GAUGES):
        values = [each.values[number] for each in measured]
        slope = statistics.median(
            (b.values[number] - a.values[number]) / (b.seconds - a.seconds) for a, b in combinations(thinned, 2)
        )
        edge = max(1, len(values) // 10)
        first, last = statistics.median(values[:edge]), statistics.median(values[-edge:])
        found.append(Trend(gauge, first, last, max(values), slope * window, slope * 3600))
    return found


def table(found: Sequence[Trend]) -> str:
    lines = [
        "| driver | after warm-up | at the end | highest | growth by slope | limit | per hour | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for trend in found:
        unit, gauge = f" {trend.gauge.unit}".rstrip(), trend.gauge
        figures = [f"{value:.1f}{unit}" for value in (trend.first, trend.last, trend.highest)]
        changes = [
            f"{trend.growth:+.2f}{unit}",
            f"{gauge.limit(trend.first):.1f}{unit}",
            f"{trend.per_hour:+.2f}{unit}",
        ]
        cells = [gauge.name, *figures, *changes, "flat" if trend.is_flat else "GROWS"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
