"""Row 7: from Parquet files to torch batches in the training loops of two workers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks import data_workload
from benchmarks.harness import OURS, PEERS, Bench, MeasureError, Outcome
from benchmarks.table import Row, Target, spread

EPOCHS = 3
ARROW = {
    "scan": "pyarrow scan, 2 threads",
    "files": "pyarrow, 2 processes",
    "split": "pyarrow, hand-tuned",
}
"""See peers/arrow_ingest.py."""
PLAIN = ("scan", "files")
LARGER = 10


def files(bench: Bench) -> Path:
    """The Parquet files that all data measures of a run read; removed with the run's scratch space."""
    folder = bench.scratch / "parquet"
    if not folder.exists():
        data_workload.write_files(folder, bench.repeats(data_workload.FILE_ROWS, data_workload.FILE_ROWS // 5))
    return folder


def rate(bench: Bench) -> Iterator[Row]:
    """Rows per second of whole epochs: of the first one in a process, and of those after it."""
    folder = files(bench)
    rows = data_workload.rows_in(folder)
    first: dict[str, list[float]] = {side: [] for side in ("ours", *ARROW)}
    later: dict[str, list[float]] = {side: [] for side in ("ours", *ARROW)}
    begins: list[float] = []
    gained: list[float] = []
    for _ in range(bench.repeats(7, 2)):
        outcome = bench.run(OURS / "ingest.py", str(folder), str(EPOCHS))
        begins.append(max(rank["first_batch"] for rank in outcome.data["passes"][0]))
        gained.append(max(rank["gained_mb"] for rank in outcome.data["passes"][0]))
        outcomes = {how: bench.run(PEERS / "arrow_ingest.py", how, str(folder), str(EPOCHS)) for how in ARROW}
        for side, ended in {"ours": outcome, **outcomes}.items():
            rates = _rates(ended, rows)
            first[side].append(rates[0])
            later[side] += rates[1:]

    what = "Parquet to torch batches, 2 workers, rows"
    yield from _against_arrow(what, later, "8.1M/s")
    yield from _against_arrow("the same, first epoch of a process", first, "-")
    yield Row(
        "7", "the same, second and third epoch", "1/s", later["ours"], "first epoch", first["ours"],
        Target("ratio", "least", 1.0),
    )  # fmt: skip
    note = f"max {max(begins):.2f} s"
    yield Row("7", "first batch after the call", "s", begins, target=Target("figure", "most", 0.3), note=note)
    yield from _memory(bench, folder, gained)
    yield from _other_peers(bench, folder, rows, what, first["ours"])


def _against_arrow(what: str, rates: dict[str, list[float]], reference: str) -> Iterator[Row]:
    """The better one of the two plain ways is the one to reach; the hand-tuned one shows what could be had."""
    best = max(PLAIN, key=lambda how: statistics.median(rates[how]))
    for how, name in ARROW.items():
        target = Target("ratio", "least", 0.9) if how == best else None
        note = f"spread {spread(rates['ours'])}, {name} {spread(rates[how])}"
        yield Row("7", what, "1/s", rates["ours"], name, rates[how], target, reference, note)


def _rates(outcome: Outcome, rows: int) -> list[float]:
    for ranks in outcome.data["passes"]:
        if (seen := sum(rank["rows"] for rank in ranks)) != rows:
            raise MeasureError(f"an epoch had {seen:.0f} rows instead of {rows}")
    return [data_workload.rate(ranks) for ranks in outcome.data["passes"]]


def _memory(bench: Bench, folder: Path, gained: list[float]) -> Iterator[Row]:
    """What the first epoch adds to a worker's resident memory at most, and that large row groups do not matter.

    Up to the size of a portion that is read at a time, memory grows with row groups; from there on it must not.
    """

    def gain(name: str, group_rows: int) -> list[float]:
        file = data_workload.write_one_file(bench.scratch / name, folder, group_rows)
        outcomes = [bench.run(OURS / "ingest.py", str(file), "1") for _ in range(bench.repeats(3))]
        return [max(rank["gained_mb"] for rank in outcome.data["passes"][0]) for outcome in outcomes]

    larger = gain("larger-groups", LARGER * data_workload.GROUP_ROWS)
    largest = gain("one-group", data_workload.rows_in(folder))
    what, note = "memory that an epoch adds to a worker", f"row groups of {data_workload.GROUP_ROWS:,} rows"
    yield Row("7", what, "MB", gained, note=note)
    note = f"row groups {LARGER} x as large, in one file"
    yield Row("7", what, "MB", larger, "8 files", gained, note=note)
    note, peer = "all rows in one row group", f"row groups {LARGER} x as large"
    yield Row("7", what, "MB", largest, peer, larger, Target("ratio", "most", 1.1), note=note)


def _other_peers(bench: Bench, folder: Path, rows: int, what: str, ours: list[float]) -> Iterator[Row]:
    """Once each: they take a while. Their only epoch is compared with our first ones."""
    scripts = {"HF datasets": ("hf_ingest.py", "0.16M/s")} | (
        {"Ray Data": ("ray_ingest.py", "0.18-0.26M/s")} if bench.has_ray else {}
    )
    for name, (script, reference) in scripts.items():
        outcome = bench.run(PEERS / script, str(folder))
        theirs = _rates(outcome, rows) if name != "Ray Data" else [_ray_rate(outcome, rows)]
        begin = max(rank["first_batch"] for rank in outcome.data["passes"][0])
        target = Target("ratio", "least", 20) if name == "Ray Data" else None
        note = f"first epochs; {name}: first batch after {begin:.1f} s"
        yield Row("7", what, "1/s", ours, name, theirs, target, reference, note)


def _ray_rate(outcome: Outcome, rows: int) -> float:
    """Ray may leave a row out so that both workers get equally many."""
    (ranks,) = outcome.data["passes"]
    if sum(rank["rows"] for rank in ranks) < rows - data_workload.WORKERS:
        raise MeasureError("Ray's epoch lacks rows")
    return data_workload.rate(ranks)


def seek(bench: Bench) -> Iterator[Row]:
    """A position is loaded in mid-epoch: from the call to the first batch."""
    outcome = bench.run(OURS / "seek.py", str(files(bench)), str(bench.repeats(25, 5)))
    seconds = outcome.data["seconds"]
    note = f"max {max(seconds) * 1000:.0f} ms, anywhere in the epoch, by both workers at once"
    yield Row("7", "go on in mid-epoch: first batch", "s", seconds, target=Target("figure", "most", 0.05), note=note)
