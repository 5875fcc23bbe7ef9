"""Sharded models: training speed under FSDP2, and how long a save of 1 GB keeps the loop from its work."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import OURS, PEERS, TORCHRUN, Bench, alternate
from benchmarks.table import Row, Target
from benchmarks.throughput import one_thread

WINDOWS = "15"


def steps(bench: Bench) -> Iterator[Row]:
    """Steps per second of an MLP of 8M parameters, 2 workers, one thread each, timed inside the loop."""
    alone = {"OMP_NUM_THREADS": "1"}
    ours, peer = OURS / "sharded.py", PEERS / "torchrun_fsdp2.py"
    values = alternate(
        bench.repeats(11, 3),
        ours=lambda: one_thread(bench.run(ours, "steps", WINDOWS, env=alone)),
        torchrun=lambda: one_thread(bench.run(peer, WINDOWS, launcher=TORCHRUN, env=alone)),
    )
    target = Target("ratio", "least", 0.98)
    what = "FSDP2 steps, 2 workers"
    yield Row("5", what, "1/s", values["ours"], "torchrun", values["torchrun"], target, "1.0", paired=True)


def saves(bench: Bench) -> Iterator[Row]:
    """save_sharded() and report() in turn with DCP alone, which does not hash, verify, record or commit anything."""
    target = Target("ratio", "most", 1.0)
    for mode, what in (("sync", "sharded save of 1 GB, loop blocked"), ("async", "the same with async_save")):
        data = bench.run(OURS / "sharded.py", mode, str(bench.repeats(11, 5)), env={"OMP_NUM_THREADS": "1"}).data
        peer = "DCP save" if mode == "sync" else "DCP async_save"
        yield Row("6", what, "s", data["ours"], peer, data["dcp"], target, paired=True)
