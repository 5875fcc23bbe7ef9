"""Growth in rows: 20 GB of Parquet through two workers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from benchmarks import data_workload
from benchmarks.harness import OURS, Bench, MeasureError
from benchmarks.table import Row, Target

GIGABYTE = 10**9
TOTAL = 20 * GIGABYTE
MOST_MB = 1500


def stream(bench: Bench) -> Iterator[Row]:
    """One epoch over files that are larger than what the workers may use, written first and removed afterwards."""
    wanted = bench.repeats(TOTAL, GIGABYTE)
    free = shutil.disk_usage(bench.scratch).free
    total = min(wanted, int(free / 1.5))
    if total < GIGABYTE:
        raise MeasureError(f"only {free / GIGABYTE:.1f} GB are free in {bench.scratch}; set TMPDIR to a larger disk")
    print(f"  writing {total / GIGABYTE:.1f} GB to {bench.scratch}", flush=True)
    folder = bench.scratch / "large"
    try:
        data_workload.write_copies(folder, total)
        rows = data_workload.rows_in(folder)
        stored = sum(path.stat().st_size for path in folder.iterdir()) / GIGABYTE
        with bench.start(OURS / "ingest.py", str(folder), "1") as script:
            (ranks,) = script.finish(timeout=3600).data["passes"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if (seen := sum(rank["rows"] for rank in ranks)) != rows:
        raise MeasureError(f"the epoch had {seen:.0f} rows instead of {rows}")
    size = f"{stored:.0f} GB of Parquet"
    note = f"{rows:,} rows; first batch after {max(rank['first_batch'] for rank in ranks):.2f} s"
    if total < wanted:
        note += f"; less than {wanted / GIGABYTE:.0f} GB, because only {free / GIGABYTE:.0f} GB of disk were free"
    yield Row("G3", f"{size}, 2 workers, rows", "1/s", [data_workload.rate(ranks)], note=note)
    peaks = [rank["peak_mb"] for rank in ranks]
    gained = max(rank["gained_mb"] for rank in ranks)
    note = f"each worker's peak; at most {gained:.0f} MB of it were gained in the epoch"
    yield Row("G3", f"{size}, memory of a worker", "MB", peaks, target=Target("worst", "most", MOST_MB), note=note)
    last, first = [rank["last_tenth"] for rank in ranks], [rank["first_tenth"] for rank in ranks]
    what = f"{size}, time per batch, last tenth"
    yield Row("G3", what, "s", last, "first tenth", first, Target("ratio", "most", 1.2))
