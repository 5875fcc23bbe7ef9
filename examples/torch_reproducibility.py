"""Two runs with the same seed give the same numbers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer


def train_func() -> None:
    train.torch.enable_reproducibility(seed=7)

    rows = torch.randn(200, 4)
    targets = rows.sum(dim=1, keepdim=True)
    model = train.torch.prepare_model(nn.Linear(4, 1))
    loader = train.torch.prepare_data_loader(DataLoader(TensorDataset(rows, targets), batch_size=10, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for batch, target in loader:
            loss = nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        train.report({"epoch": epoch, "loss": loss.item()})


def losses() -> list[float]:
    trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0))
    return trainer.fit().metrics_dataframe["loss"].tolist()


if __name__ == "__main__":
    first, second = losses(), losses()
    print(f"first run:  {first}")
    print(f"second run: {second}")
    print("the same" if first == second else "different")
