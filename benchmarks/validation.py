"""Row 47: what validation beside the training costs the training."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.harness import OURS, Bench, MeasureError, Outcome, alternate
from benchmarks.table import Row, Target

ROUNDS = "8"


def beside_training(bench: Bench) -> Iterator[Row]:
    """Steps per second of one worker while another one validates its checkpoints, one thread each, against the same
    training without validation."""
    shares: list[float] = []

    def measured(kind: str) -> float:
        outcome = bench.run(OURS / "validation.py", ROUNDS, kind, env={"OMP_NUM_THREADS": "1"})
        if outcome.data["threads"] != 1:
            raise MeasureError(f"the workers must use one thread each, not {outcome.data['threads']}")
        if kind == "validated":
            shares.append(_share(outcome))
        return float(outcome.data["rate"])

    values = alternate(bench.repeats(10, 3), validated=lambda: measured("validated"), plain=lambda: measured("plain"))
    yield Row(
        "47", "training steps beside validation", "1/s", values["validated"], "no validation", values["plain"],
        Target("ratio", "least", 0.95), note=f"validating {statistics.median(shares):.0%} of the time", paired=True,
    )  # fmt: skip


def _share(outcome: Outcome) -> float:
    """The part of the training in which a validation was at work."""
    seconds = int(ROUNDS) * 60 / outcome.data["rate"]
    if not outcome.data["done"]:
        raise MeasureError("no validation was over before the training was")
    return float(outcome.data["busy_s"] / seconds)
