"""Training whose checkpoints other workers validate, or nobody. Arguments: rounds, "validated" or "plain"."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import workload
from paceline.air import CheckpointConfig, RunConfig, ScalingConfig
from paceline.run.records import FORMAT, TrainingEnded, Validated
from paceline.train import Checkpoint, ValidationConfig
from paceline.train.torch import TorchCheckpoint, TorchTrainer

STEPS = 60
"""Between two checkpoints: about a second."""
BATCHES = 150
"""Of one validation: nearly as long."""


def train_mlp(config: dict[str, Any]) -> None:
    import torch

    from paceline import train
    from paceline.train.torch import prepare_model

    torch.manual_seed(0)
    model = prepare_model(workload.mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(workload.BATCH, workload.LAYERS[0])
    labels = torch.randint(workload.LAYERS[-1], (workload.BATCH,))
    lossf = torch.nn.CrossEntropyLoss()
    started = 0.0
    for number in range(config["rounds"] + 1):
        if number == 1:  # the first round warms up, and gives the validation something to do
            started = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            lossf(model(inputs), labels).backward()
            optimizer.step()
        rate = STEPS * number / (time.perf_counter() - started) if number else 0.0
        train.report(
            {"rate": rate, "threads": torch.get_num_threads()},
            checkpoint=TorchCheckpoint.from_model(model),
            validation=config["validates"],
        )


def validate(checkpoint: Checkpoint) -> dict[str, float]:
    import torch

    model = TorchCheckpoint.from_checkpoint(checkpoint).get_model(workload.mlp())
    inputs = torch.randn(workload.BATCH * 4, workload.LAYERS[0])
    total = 0.0
    with torch.no_grad():
        for _ in range(BATCHES):
            total += float(model(inputs).sum())
    return {"total": total, "threads": torch.get_num_threads()}


def main(rounds: int, *, validates: bool) -> None:
    result = TorchTrainer(
        train_mlp,
        train_loop_config={"rounds": rounds, "validates": validates},
        scaling_config=ScalingConfig(num_workers=1),
        validation_config=ValidationConfig(validate),
        run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=1)),
    ).fit()
    assert result.log_dir is not None
    records = list(FORMAT.read(result.log_dir / "journal.jsonl"))
    over = next((place for place, each in enumerate(records) if isinstance(each, TrainingEnded)), len(records))
    done = [each for each in records[:over] if isinstance(each, Validated)]
    threads = {result.metrics["threads"], *(each.metrics["threads"] for each in done)}
    busy = sum(each.duration_s for each in done)
    workload.write_out({"rate": result.metrics["rate"], "threads": max(threads), "done": len(done), "busy_s": busy})


if __name__ == "__main__":
    main(int(sys.argv[1]), validates=sys.argv[2] == "validated")
