"""Growth in workers: 64 of them on a small machine."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.harness import OURS, Bench
from benchmarks.table import Row, Target

WORKERS = 64


def start(bench: Bench) -> Iterator[Row]:
    """Start of a fresh process to the moment when the last of 64 workers is in the train function."""
    for kind in ("plain", "torch"):
        seconds, ends = [], []
        for _ in range(bench.repeats(3)):
            with bench.start(OURS / "idle.py", kind, "quiet", str(WORKERS)) as script:
                script.wait_for_files([f"ready-{rank}" for rank in range(WORKERS)])
                seconds.append(time.monotonic() - script.started)
                (script.place / "release").touch()
                released = time.monotonic()
                script.finish()
                ends.append(time.monotonic() - released)
        note = f"cold; all ended {min(ends):.1f} s after release"
        yield Row("G2", f"64 {kind} workers up", "s", seconds, target=Target("figure", "most", 10), note=note)
