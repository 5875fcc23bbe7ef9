"""Train with Hugging Face Accelerate on two workers: a classifier of two moons, resumed for more epochs."""

import math
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from paceline import data
from paceline.air import Checkpoint, Result, RunConfig, ScalingConfig, session
from paceline.train.huggingface import AccelerateTrainer


def two_moons(rows: int) -> data.Dataset:
    generator = np.random.default_rng(0)
    label = np.arange(rows) % 2
    angle = generator.uniform(0, math.pi, rows)
    x = np.where(label == 0, np.cos(angle), 1 - np.cos(angle)) + generator.normal(0, 0.1, rows)
    y = np.where(label == 0, np.sin(angle), 0.5 - np.sin(angle)) + generator.normal(0, 0.1, rows)
    points = np.stack([x, y], axis=1).astype(np.float32)
    return data.from_items([{"point": point, "label": moon} for point, moon in zip(points, label, strict=True)])


def train_func(config: dict[str, Any]) -> None:
    # Finds the process group of the workers, this worker's device, and the settings in accelerate_config.
    accelerator = Accelerator()
    model: nn.Module = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    start_epoch = 0
    checkpoint = session.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        model.load_state_dict(state["model"])
        start_epoch = state["epoch"] + 1

    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=config["lr"]))
    train_rows, test_rows = session.get_dataset_shard("train"), session.get_dataset_shard("test")
    for epoch in range(start_epoch, config["num_epochs"]):
        model.train()
        # 256 rows of each worker are 16 batches: a multiple of gradient_accumulation_steps, so that none is left over.
        for batch in train_rows.iter_torch_batches(batch_size=16, device=accelerator.device):
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch["point"]), batch["label"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

        model.eval()
        right = seen = 0  # of the test rows, which every worker has whole
        for batch in test_rows.iter_torch_batches(batch_size=64, device=accelerator.device):
            with torch.no_grad():
                right += int((model(batch["point"]).argmax(dim=1) == batch["label"]).sum())
            seen += len(batch["label"])

        weights = accelerator.unwrap_model(model).state_dict()
        session.report(
            {
                "epoch": epoch,
                "loss": loss.item(),
                "accuracy": right / seen,
                "precision": accelerator.mixed_precision,
            },
            checkpoint=Checkpoint.from_dict({"epoch": epoch, "model": weights}),
        )


def fit(num_epochs: int, resume_from_checkpoint: Checkpoint | None = None) -> Result:
    train_rows, test_rows = two_moons(640).train_test_split(0.2)
    trainer = AccelerateTrainer(
        train_func,
        train_loop_config={"lr": 0.02, "num_epochs": num_epochs},
        # The content of a file that `accelerate config` makes; a path to such a file does as well.
        accelerate_config={"mixed_precision": "bf16", "gradient_accumulation_steps": 2},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=1),
        datasets={"train": train_rows, "test": test_rows},
        resume_from_checkpoint=resume_from_checkpoint,
    )
    return trainer.fit()


if __name__ == "__main__":
    first = fit(num_epochs=4)
    second = fit(num_epochs=8, resume_from_checkpoint=first.checkpoint)
    frame = second.metrics_dataframe
    print(f"epochs of the second run: {frame['epoch'].tolist()}, in {frame['precision'].iloc[-1]}")
    print(f"accuracy: {frame['accuracy'].iloc[-1]:.2f}")
