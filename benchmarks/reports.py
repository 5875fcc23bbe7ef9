"""Row 4 and the growth of reports: how many per second, and whether the 100,000th costs what the first did."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.harness import OURS, PEERS, Bench, MeasureError, Outcome
from benchmarks.table import Row, Target


def _ours(bench: Bench, workers: int, reports: int) -> Outcome:
    outcome = bench.run(OURS / "reports.py", str(workers), str(reports))
    if not outcome.data["complete"]:
        raise MeasureError(f"of {reports} reports by {workers} workers some did not arrive")
    return outcome


def rate(bench: Bench) -> Iterator[Row]:
    """Reports of five metrics delivered to the result with the default loggers on."""
    for workers, least, v1, v2 in ((1, 10_000, "142/s", "0.6/s"), (2, 5_000, "94/s", "0.6/s")):
        ours = [_ours(bench, workers, 20_000).data["rate"] for _ in range(bench.repeats(3))]
        target = Target("figure", "least", least)
        what = f"reports, {workers} worker{'s' * (workers > 1)}"
        if not bench.has_ray:
            yield Row("4", what, "1/s", ours, target=target)
            continue
        for name, enabled, reports, reference in (("Ray V1", "0", 2000, v1), ("Ray V2", "1", 10, v2)):
            env = {"RAY_TRAIN_V2_ENABLED": enabled}
            theirs = [bench.run(PEERS / "ray_reports.py", str(workers), str(reports), env=env).data["rate"]]
            yield Row("4", what, "1/s", ours, name, theirs, target, reference)


def growth(bench: Bench) -> Iterator[Row]:
    """100,000 reports: the driver's memory stays flat, nothing is lost, the pace is kept."""
    data = _ours(bench, 1, 100_000).data
    memory = data["memory"]
    early = statistics.median(memory[len(memory) // 5 : len(memory) * 3 // 10])
    grown = max(0.0, max(memory[-max(1, len(memory) // 10) :]) - early)
    note = f"from {early:.0f} MB after the first fifth; dataframe of 100,000 rows complete, read in "
    note += f"{data['frame_seconds']:.1f} s"
    yield Row(
        "G1", "driver memory gained over 100,000 reports", "MB", [grown], target=Target("figure", "most", 10), note=note
    )
    last, first = [data["last_tenth"]], [data["first_tenth"]]
    target = Target("ratio", "most", 1.2)
    yield Row("G1", "time per report, last tenth of 100,000", "s", last, "first tenth", first, target)
