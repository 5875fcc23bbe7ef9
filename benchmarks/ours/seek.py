"""How long a shard takes to go on from the middle of an epoch. Arguments: the folder, and how many places to try."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks import data_workload, workload
from paceline import data
from paceline.train import DataParallelTrainer, ScalingConfig


def train_and_seek(config: dict[str, Any]) -> None:
    import torch

    from paceline import train

    rank = train.get_context().get_world_rank()
    shard = train.get_dataset_shard("train")
    batches = shard.iter_torch_batches(batch_size=data_workload.BATCH_ROWS)
    chosen = np.random.default_rng(rank).choice(len(batches) - 2, config["places"], replace=False) + 1
    places: list[tuple[dict[str, Any], Any]] = []
    before: dict[str, Any] = {}
    for number, batch in enumerate(batches):
        if number in chosen:
            places.append((before, batch["f0"].clone()))
        before = shard.state_dict()
    seconds = []
    for place, (state, expected) in enumerate(places):
        data_workload.meet(f"place-{place}", rank)
        shard.load_state_dict(state)
        started = time.perf_counter()
        going_on = iter(batches)
        batch = next(going_on)
        seconds.append(time.perf_counter() - started)
        going_on.close()
        if not torch.equal(batch["f0"], expected):
            raise SystemExit("the shard went on with other rows")
    (workload.place() / f"seconds-{rank}.json").write_text(json.dumps(seconds))


def main(folder: str, places: int) -> None:
    DataParallelTrainer(
        train_and_seek,
        train_loop_config={"places": places},
        scaling_config=ScalingConfig(num_workers=data_workload.WORKERS),
        datasets={"train": data.read_parquet(folder)},
    ).fit()
    ranks = range(data_workload.WORKERS)
    saved = [json.loads((workload.place() / f"seconds-{rank}.json").read_text()) for rank in ranks]
    workload.write_out({"seconds": [each for seconds in saved for each in seconds]})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
