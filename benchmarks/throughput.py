"""Row 5: training speed itself, which a library around the loop must not touch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import OURS, PEERS, TORCHRUN, Bench, MeasureError, Outcome, alternate
from benchmarks.table import Row, Target

WINDOWS = "15"


def one_thread(outcome: Outcome) -> float:
    """The rate, if it was measured with one thread per worker."""
    if outcome.data["threads"] != 1:
        raise MeasureError(f"the sides must use one thread per worker, not {outcome.data['threads']}")
    return float(outcome.data["rate"])


def ddp(bench: Bench) -> Iterator[Row]:
    """Samples per second of a 2M-parameter MLP under DDP, timed inside the loop, one thread per worker."""
    alone = {"OMP_NUM_THREADS": "1"}
    values = alternate(
        bench.repeats(7, 3),
        ours=lambda: one_thread(bench.run(OURS / "throughput.py", WINDOWS, env=alone)),
        torchrun=lambda: one_thread(bench.run(PEERS / "torchrun_throughput.py", WINDOWS, launcher=TORCHRUN, env=alone)),
    )
    spread = (max(values["torchrun"]) - min(values["torchrun"])) / max(values["torchrun"])
    yield Row(
        "5", "DDP samples, 2 workers", "1/s", values["ours"], "torchrun", values["torchrun"],
        Target("ratio", "least", 0.99), "1.0", f"torchrun's own spread {spread:.0%}", paired=True,
    )  # fmt: skip
