"""FSDP2 under paceline. Arguments: steps and windows of steps, or sync or async and how many saves."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import sharded_workload, workload
from paceline.train import CheckpointConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer


def train_blocks(config: dict[str, Any]) -> None:
    import torch

    from paceline import train
    from paceline.train.torch import prepare_model

    model = prepare_model(sharded_workload.blocks(), parallel_strategy="fsdp2")
    rate = sharded_workload.steps_per_second(model, config["number"])
    train.report({"rate": rate, "threads": torch.get_num_threads()})


def train_and_save(config: dict[str, Any]) -> None:
    from paceline import train
    from paceline.train.torch import prepare_model, save_sharded

    model, optimizer = sharded_workload.large_model_and_optimizer(
        lambda model: prepare_model(model, parallel_strategy="fsdp2")
    )

    def save(number: int) -> Callable[[], None]:
        train.report({"number": number}, checkpoint=save_sharded(model, optimizer, {"number": number}))
        return wait_until_committed

    def wait_until_committed() -> None:
        while (newest := train.get_checkpoint()) is None or newest.number != saved[-1]:
            time.sleep(0.01)

    saved: list[int] = []

    def numbered(number: int) -> Callable[[], None]:
        saved.append(number)
        return save(number)

    figures = sharded_workload.save_in_turn(
        model, optimizer, numbered, config["number"], in_background=config["what"] == "async"
    )
    if train.get_context().get_world_rank() == 0:
        (workload.place() / "figures.json").write_text(json.dumps(figures))


def main(what: str, number: int) -> None:
    kept = CheckpointConfig(num_to_keep=1, async_save=what == "async")
    result = TorchTrainer(
        train_blocks if what == "steps" else train_and_save,
        train_loop_config={"what": what, "number": number},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(checkpoint_config=kept),
    ).fit()
    assert result.metrics is not None
    if what == "steps":
        workload.write_out({"rate": result.metrics["rate"], "threads": result.metrics["threads"]})
        return
    assert result.checkpoint is not None
    result.checkpoint.verify()
    workload.write_out(json.loads((workload.place() / "figures.json").read_text()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
