"""Train a sharded model on 2 workers, continue on 3, and load the whole model into one process."""

import torch
from torch import nn

from paceline import train
from paceline.air import CheckpointConfig, Result, RunConfig, ScalingConfig
from paceline.air.checkpoint import Checkpoint
from paceline.train.torch import TorchCheckpoint, TorchTrainer, load_sharded, prepare_model, save_sharded

GLOBAL_BATCH = 48


def make_model() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(nn.Linear(16, 64), *blocks, nn.Linear(64, 1))


def train_func(config: dict[str, int]) -> None:
    context = train.get_context()
    torch.manual_seed(0)
    with torch.device("meta"):  # no worker ever holds the whole model
        model = make_model()
    model = prepare_model(model, parallel_strategy="fsdp2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        start = load_sharded(checkpoint, model, optimizer)["step"] + 1
    for step in range(start, config["steps"]):
        # The rows depend on the step alone, so that any number of workers sees the same global batch.
        rows = torch.randn(GLOBAL_BATCH, 16, generator=torch.Generator().manual_seed(step))
        rows = rows.chunk(context.get_world_size())[context.get_world_rank()]
        loss = nn.functional.mse_loss(model(rows), rows.mean(dim=1, keepdim=True))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        last = step == config["steps"] - 1
        saved = save_sharded(model, optimizer, {"step": step}) if step % 10 == 9 or last else None
        train.report({"step": step, "loss": loss.item()}, checkpoint=saved)


def fit(num_workers: int, steps: int, start: Checkpoint | None = None) -> Result:
    return TorchTrainer(
        train_func,
        train_loop_config={"steps": steps},
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(verbose=1, checkpoint_config=CheckpointConfig(num_to_keep=1, async_save=True)),
        resume_from_checkpoint=start,
    ).fit()


if __name__ == "__main__":
    first = fit(num_workers=2, steps=40)
    second = fit(num_workers=3, steps=80, start=first.checkpoint)
    assert isinstance(second.checkpoint, TorchCheckpoint)
    model = second.checkpoint.get_model(make_model())
    rows = torch.randn(1000, 16)
    error = nn.functional.mse_loss(model(rows), rows.mean(dim=1, keepdim=True)).item()
    metrics = second.metrics or {}
    print(f"step {metrics['step']} on 3 workers; one process has a model that is {'good' if error < 0.05 else 'bad'}")
