"""A train function in the style of Ray 2.0: train.report(**), train.save_checkpoint, train.load_checkpoint."""

import numpy as np
import ray
import torch
import torch.nn as nn
from ray import train
from ray.air.config import ScalingConfig
from ray.train.torch import TorchTrainer


class LinearDataset(torch.utils.data.Dataset):
    def __init__(self, a, b, size=400):
        x = np.arange(0, 10, 10 / size, dtype=np.float32)
        self.x = torch.from_numpy(x)
        self.y = torch.from_numpy(a * x + b)

    def __getitem__(self, index):
        return self.x[index, None], self.y[index, None]

    def __len__(self):
        return len(self.x)


def train_func(config):
    state = train.load_checkpoint() or {"epoch": -1}
    loader = torch.utils.data.DataLoader(LinearDataset(2, 5), batch_size=config["batch_size"])
    loader = train.torch.prepare_data_loader(loader)
    model = nn.Linear(1, 1)
    if "model" in state:
        model.load_state_dict(state["model"])
    model = train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    loss_fn = nn.MSELoss()
    results = []
    for epoch in range(state["epoch"] + 1, config["epochs"]):
        for X, y in loader:
            loss = loss_fn(model(X), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        train.save_checkpoint(epoch=epoch, model=model.module.state_dict())
        train.report(loss=loss.item(), epoch=epoch, rank=train.world_rank(), workers=train.world_size())
        results.append(loss.item())
    return results


if __name__ == "__main__":
    ray.init(num_cpus=4, ignore_reinit_error=True)
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"lr": 1e-2, "batch_size": 32, "epochs": 3},
        scaling_config=ScalingConfig(num_workers=2),
    )
    first = trainer.fit()
    second = TorchTrainer(
        train_func,
        train_loop_config={"lr": 1e-2, "batch_size": 32, "epochs": 5},
        scaling_config=ScalingConfig(num_workers=2),
        resume_from_checkpoint=first.checkpoint,
    ).fit()
    assert second.metrics_dataframe["epoch"].min() == 3
    assert second.metrics["workers"] == 2
    print("epochs:", first.metrics["epoch"], second.metrics["epoch"])
    ray.shutdown()
