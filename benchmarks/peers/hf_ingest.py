"""One epoch of torch batches from Parquet files with Hugging Face datasets, streamed by two processes.

Argument: the folder.
"""

from __future__ import annotations

import os
import sys

from datasets import load_dataset
from datasets.distributed import split_dataset_by_node

from benchmarks import data_workload


def epoch_of_rank(rank: int, folder: str) -> None:
    files = data_workload.files_in(folder)
    whole = load_dataset("parquet", data_files=files, split="train", streaming=True).with_format("torch")
    part = split_dataset_by_node(whole, rank, data_workload.WORKERS)
    data_workload.meet("epoch", rank)
    data_workload.save_passes(rank, [data_workload.consume(lambda: part.iter(data_workload.BATCH_ROWS))])


def main(folder: str) -> None:
    child = os.fork()
    if child == 0:
        epoch_of_rank(1, folder)
        os._exit(0)
    epoch_of_rank(0, folder)
    os.waitpid(child, 0)
    data_workload.write_out_passes(data_workload.WORKERS)


if __name__ == "__main__":
    main(sys.argv[1])
