"""Image classification with two workers, as in the PyTorch guide of Ray 2.7 and later."""

import os
import tempfile

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train_func(config):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    train_loader = DataLoader(
        TensorDataset(images[:1500], labels[:1500]), batch_size=config["batch_size"], shuffle=True
    )
    train_loader = ray.train.torch.prepare_data_loader(train_loader)
    model = ray.train.torch.prepare_model(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            train_loader.sampler.set_epoch(epoch)
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(images[1500:]).argmax(dim=1) == labels[1500:]).float().mean().item()
        metrics = {"loss": loss.item(), "accuracy": accuracy, "epoch": epoch}
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(model.module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
            ray.train.report(metrics, checkpoint=checkpoint)


trainer = TorchTrainer(
    train_func,
    train_loop_config={"lr": 5e-3, "batch_size": 64, "epochs": 4},
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    run_config=RunConfig(
        name="digits",
        checkpoint_config=CheckpointConfig(
            num_to_keep=1, checkpoint_score_attribute="accuracy", checkpoint_score_order="max"
        ),
    ),
)
result = trainer.fit()
print(result.metrics_dataframe[["epoch", "accuracy"]])

with result.checkpoint.as_directory() as checkpoint_dir:
    model = build_model()
    model.load_state_dict(torch.load(os.path.join(checkpoint_dir, "model.pt")))
digits = load_digits()
x = torch.tensor(digits.images[1500:], dtype=torch.float32) / 16
accuracy = (model(x).argmax(dim=1).numpy() == digits.target[1500:]).mean()
assert len(result.best_checkpoints) == 1
print("restored model is good:", accuracy > 0.8)
