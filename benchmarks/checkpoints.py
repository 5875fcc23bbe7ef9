"""Row 6: how long a training loop stands still for a checkpoint of 200 MB, and what it costs to read one."""

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


def budget(bench: Bench) -> Iterator[Row]:
    """Checkpoints of 200 MB on a store that takes 20 MB/s, with max_overhead=0.03 and steps of 50 ms."""
    seconds = 75 if bench.quick else 600
    with bench.start(OURS / "checkpoint_budget.py", str(seconds)) as running:
        data = running.finish(timeout=seconds + 300).data
    share = 100 / data["elapsed"]
    what = "200 MB to 20 MB/s, max_overhead=0.03: loop blocked or saving, of 100 s"
    target = Target("figure", "most", 3.5)
    outside = "as seen from outside"
    yield Row("6", what, "s", [data["accounted"] * share], outside, [data["outside"] * share], target)
    what = "age of the newest stored checkpoint, in intervals"
    yield Row("6", what, "s", data["age_in_intervals"], target=Target("worst", "most", 2.0))


def short_steps(bench: Bench) -> Iterator[Row]:
    """The same with steps of 5 ms, for which asking whether to save matters more than saving."""
    data = bench.run(OURS / "short_steps_budget.py", "10" if bench.quick else "60").data
    share = 100 / data["elapsed"]
    what = "2 workers, steps of 5 ms, max_overhead=0.03: loop asking or saving, of 100 s"
    accounted = [(data["asking"] + data["saving"]) * share]
    target = Target("figure", "most", 3.5)
    yield Row("6", what, "s", accounted, "as seen from outside", [data["outside"] * share], target)


def verified_reads(bench: Bench) -> Iterator[Row]:
    """A committed checkpoint read for the first time, in turn with reading and hashing the same bytes by hand."""
    data = bench.run(OURS / "checkpoint_reads.py", str(bench.repeats(9, 5))).data
    target = Target("ratio", "most", 1.2)
    what, hand = "as_directory() of a 200 MB checkpoint, verified", "read + hash"
    yield Row("6", what, "s", data["read"], hand, data["read_by_hand"], target, "0.018 s", paired=True)
    what, hand = "to_directory() of the same, verified", "read + hash + write"
    yield Row("6", what, "s", data["copied"], hand, data["copied_by_hand"], target, "0.063 s", paired=True)
