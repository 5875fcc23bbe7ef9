"""Epochs of torch batches from Parquet files with nothing but pyarrow on two cores.

Arguments: how, the folder, and how many epochs. `scan`: one process, Arrow's dataset scanner with two threads.
`files`: two processes with half of the files each, batches as Arrow cuts them. `split`: the same, but columns are
converted in larger portions and cut by torch, as someone would write it who has measured a lot.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import torch

from benchmarks import data_workload
from benchmarks.data_workload import BATCH_ROWS

PORTION_ROWS = 16 * BATCH_ROWS


def scan(files: list[str]) -> Iterator[dict[str, torch.Tensor]]:
    for batch in pa.dataset.dataset(files).to_batches(batch_size=BATCH_ROWS):
        yield data_workload.tensors(batch)


def cut_by_arrow(files: list[str]) -> Iterator[dict[str, torch.Tensor]]:
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=BATCH_ROWS, use_threads=False):
            yield data_workload.tensors(batch)


def cut_by_torch(files: list[str]) -> Iterator[dict[str, torch.Tensor]]:
    for file in files:
        for portion in pq.ParquetFile(file).iter_batches(batch_size=PORTION_ROWS, use_threads=False):
            columns = data_workload.tensors(portion)
            for parts in zip(*(column.split(BATCH_ROWS) for column in columns.values()), strict=True):
                yield dict(zip(columns, parts, strict=True))


def epochs_of_rank(rank: int, ranks: int, how: str, files: list[str], epochs: int) -> None:
    deliver = {"scan": scan, "files": cut_by_arrow, "split": cut_by_torch}[how]
    passes = []
    for epoch in range(epochs):
        if ranks > 1:
            data_workload.meet(f"epoch-{epoch}", rank)
        passes.append(data_workload.consume(lambda: deliver(files[rank::ranks])))
    data_workload.save_passes(rank, passes)


def main(how: str, folder: str, epochs: int) -> None:
    warnings.filterwarnings("ignore", message=".*not writable.*")
    pa.set_cpu_count(data_workload.WORKERS)
    files = data_workload.files_in(folder)
    ranks = 1 if how == "scan" else data_workload.WORKERS
    children = []
    for rank in range(1, ranks):
        child = os.fork()
        if child == 0:
            epochs_of_rank(rank, ranks, how, files, epochs)
            os._exit(0)
        children.append(child)
    epochs_of_rank(0, ranks, how, files, epochs)
    for child in children:
        os.waitpid(child, 0)
    data_workload.write_out_passes(ranks)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
