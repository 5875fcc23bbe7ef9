"""The rows that every side reads, the batches that it must deliver, and how its time is taken."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import processes, workload

if TYPE_CHECKING:
    import torch

FILES = 8
FILE_ROWS = 750_000
GROUP_ROWS = 131_072
BATCH_ROWS = 4096
WORKERS = 2
NUMBERS = tuple(f"f{i}" for i in range(12))
CATEGORIES = tuple(f"c{i}" for i in range(4))


def table(seed: int, rows: int) -> pa.Table:
    """12 columns of float32, 4 of int64 with 20 categories each, and a label."""
    random = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {name: random.standard_normal(rows, dtype=np.float32) for name in NUMBERS}
    columns |= {name: random.integers(0, 20, rows) for name in CATEGORIES}
    return pa.table({**columns, "label": random.integers(0, 2, rows)})


def write_files(folder: Path, file_rows: int, group_rows: int = GROUP_ROWS) -> Path:
    """The same rows in each run, in 8 files."""
    folder.mkdir()
    for number in range(FILES):
        pq.write_table(table(number, file_rows), folder / f"part-{number}.parquet", row_group_size=group_rows)
    return folder


def write_one_file(folder: Path, source: Path, group_rows: int) -> Path:
    """The rows of all files of `source` in a single one, with other row groups."""
    folder.mkdir()
    pq.write_table(pq.read_table(source), folder / "all.parquet", row_group_size=group_rows)
    return folder


def write_copies(folder: Path, total_bytes: int) -> Path:
    """Files of about half a gigabyte each, alike but for their names, `total_bytes` together or a little more."""
    folder.mkdir()
    first = folder / "part-000.parquet"
    group = table(0, GROUP_ROWS)
    with pq.ParquetWriter(first, group.schema) as writer:
        for _ in range(50):
            writer.write_table(group, row_group_size=GROUP_ROWS)
    for number in range(1, -(-total_bytes // first.stat().st_size)):
        shutil.copyfile(first, folder / f"part-{number:03}.parquet")
    return folder


def files_in(folder: str | Path) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob("*.parquet"))


def rows_in(folder: str | Path) -> int:
    return sum(pq.ParquetFile(file).metadata.num_rows for file in files_in(folder))


def tensors(batch: pa.RecordBatch) -> dict[str, torch.Tensor]:
    """What a user would write: every column as a tensor that keeps Arrow's memory."""
    import torch

    columns = zip(batch.schema.names, batch.columns, strict=True)
    return {name: torch.from_numpy(column.to_numpy()) for name, column in columns}


# -- time -------------------------------------------------------------------------------------


def meet(name: str, rank: int) -> None:
    """Wait until both workers are here, so that they begin together."""
    here = workload.place()
    (here / f"{name}-{rank}").touch()
    while not all((here / f"{name}-{each}").exists() for each in range(WORKERS)):
        time.sleep(0.0005)


def consume(begin: Callable[[], Iterable[dict[str, Any]]]) -> dict[str, float]:
    """One pass over batches: when it began and ended, how it went, and what memory it took.

    The clock is CLOCK_MONOTONIC, which all processes share.
    """
    peak_before, before = processes.peak_mb(), processes.resident_mb()
    processes.forget_peak()
    rows, stamps = 0, [time.monotonic()]
    for batch in begin():
        rows += len(batch["label"])
        stamps.append(time.monotonic())
    ended = time.monotonic()
    peak = processes.peak_mb()
    tenth = max(1, (len(stamps) - 1) // 10)
    return {
        "rows": rows,
        "began": stamps[0],
        "ended": ended,
        "first_batch": stamps[1] - stamps[0],
        "first_tenth": (stamps[1 + tenth] - stamps[1]) / tenth,
        "last_tenth": (stamps[-1] - stamps[-1 - tenth]) / tenth,
        "gained_mb": max(0.0, peak - before),
        "peak_mb": max(peak, peak_before),
    }


def save_passes(rank: int, passes: Sequence[dict[str, float]]) -> None:
    (workload.place() / f"passes-{rank}.json").write_text(json.dumps(passes))


def write_out_passes(ranks: int) -> None:
    """Hand what the ranks saved to the harness: for each pass a list with one entry per rank."""
    saved = [json.loads((workload.place() / f"passes-{rank}.json").read_text()) for rank in range(ranks)]
    workload.write_out({"passes": list(zip(*saved, strict=True))})


def rate(ranks: Sequence[dict[str, float]]) -> float:
    """Rows per second of one pass by all ranks, from the first one's begin to the last one's end."""
    seconds = max(each["ended"] for each in ranks) - min(each["began"] for each in ranks)
    return sum(each["rows"] for each in ranks) / seconds
