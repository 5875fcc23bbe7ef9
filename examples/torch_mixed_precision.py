"""Train in mixed precision: three calls of paceline.train.torch replace those of plain PyTorch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer


def train_func() -> None:
    train.torch.accelerate(amp=True)  # bfloat16 on CPU, float16 on GPU

    torch.manual_seed(0)
    rows = torch.randn(512, 16)
    labels = (rows.sum(dim=1) > 0).long()
    model = train.torch.prepare_model(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)))
    loader = train.torch.prepare_data_loader(DataLoader(TensorDataset(rows, labels), batch_size=64, shuffle=True))
    optimizer = train.torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    for epoch in range(5):
        total = 0.0
        for batch, target in loader:
            optimizer.zero_grad()
            outputs = model(batch)
            loss = nn.functional.cross_entropy(outputs, target)
            train.torch.backward(loss)
            optimizer.step()
            total += loss.item()
        train.report({"epoch": epoch, "loss": total / len(loader), "dtype": str(outputs.dtype)})


if __name__ == "__main__":
    result = TorchTrainer(
        train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=1)
    ).fit()
    history = result.metrics_dataframe
    first, last = history.iloc[0], history.iloc[-1]
    print(f"loss {first['loss']:.3f} -> {last['loss']:.3f}, outputs in {last['dtype']}")
