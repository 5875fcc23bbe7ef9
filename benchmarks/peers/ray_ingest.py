"""One epoch of torch batches from Parquet files with Ray Data and Ray Train, 2 workers. Argument: the folder."""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray import train
from ray.train.torch import TorchTrainer

from benchmarks import data_workload
from benchmarks.peers import ray_setup


def train_epoch(config: dict[str, Any]) -> None:
    def batches() -> Any:
        return train.get_dataset_shard("train").iter_torch_batches(batch_size=data_workload.BATCH_ROWS)

    rank = train.get_context().get_world_rank()
    data_workload.meet("epoch", rank)
    data_workload.save_passes(rank, [data_workload.consume(batches)])


def main(folder: str) -> None:
    ray_setup.start()
    datasets: dict[str, Any] = {"train": ray.data.read_parquet(folder)}
    TorchTrainer(train_epoch, datasets=datasets, **ray_setup.configs(data_workload.WORKERS)).fit()
    ray.shutdown()
    data_workload.write_out_passes(data_workload.WORKERS)


if __name__ == "__main__":
    main(sys.argv[1])
