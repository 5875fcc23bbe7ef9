"""Row 6: how long a training loop stands still for a checkpoint of 200 MB."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import OURS, PEERS, Bench
from benchmarks.table import Row, Target


def blocked(bench: Bench) -> Iterator[Row]:
    """report(checkpoint) in turn with cp + fsync of the same directory into the same filesystem."""
    sync = bench.run(OURS / "checkpoint.py", "sync", str(bench.repeats(9, 5))).data
    what, copy = "report(200 MB checkpoint), loop blocked", "cp -r + fsync"
    target = Target("ratio", "most", 1.0)
    yield Row("6", what, "s", sync["blocked"], copy, sync["copied"], target, "0.16 s", paired=True)
    saved = bench.run(OURS / "checkpoint.py", "async", str(bench.repeats(7, 3))).data
    target = Target("figure", "most", 0.01)
    yield Row("6", "the same with async_save", "s", saved["blocked"], copy, saved["copied"], target, "0.16 s")
    if bench.has_ray:
        theirs = bench.run(PEERS / "ray_checkpoint.py", "3").data["blocked"]
        yield Row("6", what, "s", sync["blocked"], "Ray", theirs, reference="1.5 s")
