"""Epochs of torch batches from Parquet files by 2 workers. Arguments: the folder, and how many epochs."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import data_workload
from paceline import data
from paceline.train import DataParallelTrainer, ScalingConfig


def train_epochs(config: dict[str, Any]) -> None:
    import torch  # noqa: F401  # a training script has it by then

    from paceline import train

    def batches() -> Any:
        return train.get_dataset_shard("train").iter_torch_batches(batch_size=data_workload.BATCH_ROWS)

    rank = train.get_context().get_world_rank()
    passes = []
    for epoch in range(config["epochs"]):
        data_workload.meet(f"epoch-{epoch}", rank)
        passes.append(data_workload.consume(batches))
    data_workload.save_passes(rank, passes)


def main(folder: str, epochs: int) -> None:
    DataParallelTrainer(
        train_epochs,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=data_workload.WORKERS),
        datasets={"train": data.read_parquet(folder)},
    ).fit()
    data_workload.write_out_passes(data_workload.WORKERS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
