"""From Parquet files to a trained model: datasets, a preprocessor and two workers.

The table is scikit-learn's: 569 tumours with 30 measurements each, malignant or benign. It is written to Parquet
files first, as data usually comes in files.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from paceline import data, train
from paceline.data.preprocessors import Chain, Concatenator, LabelEncoder, StandardScaler
from paceline.train import DataConfig, Result, RunConfig, ScalingConfig
from paceline.train.torch import TorchCheckpoint, TorchTrainer, prepare_model

EPOCHS = 8


def write_files(directory: str) -> None:
    """The table as 8 Parquet files."""
    table = load_breast_cancer(as_frame=True)
    frame = table.frame.drop(columns="target").assign(diagnosis=table.target_names[table.target])
    data.from_pandas(frame).repartition(8).write_parquet(directory)


def train_loop(config: dict[str, Any]) -> None:
    """Runs in every worker: its share of the rows, epoch by epoch."""
    torch.manual_seed(0)
    train_rows, test_rows = train.get_dataset_shard("train"), train.get_dataset_shard("test")
    network = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))
    model = prepare_model(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    for epoch in range(train_rows.epoch, config["epochs"]):
        for batch in train_rows.iter_torch_batches(batch_size=16):
            loss = nn.functional.cross_entropy(model(batch["features"]), batch["diagnosis"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        right = rows = 0
        with torch.no_grad():
            for batch in test_rows.iter_torch_batches(batch_size=256):
                right += int((network(batch["features"]).argmax(dim=1) == batch["diagnosis"]).sum())
                rows += len(batch["diagnosis"])
        train.report(
            {"epoch": epoch, "right": right, "rows": rows},
            checkpoint=TorchCheckpoint.from_state_dict(network.state_dict()),
            reduce={"right": "sum", "rows": "sum"},  # each worker has counted its own test rows
        )


def fit(directory: str) -> Result:
    """Read, split, prepare and train."""
    rows = data.read_parquet(directory)
    train_rows, test_rows = rows.train_test_split(0.25, shuffle=True, seed=0)
    measurements = [name for name in rows.columns() if name != "diagnosis"]
    preprocessor = Chain(
        StandardScaler(measurements),
        LabelEncoder("diagnosis"),
        Concatenator("features", include=measurements, dtype="float32"),
    )
    return TorchTrainer(
        train_loop,
        train_loop_config={"lr": 3e-3, "epochs": EPOCHS},
        datasets={"train": train_rows, "test": test_rows},
        dataset_config=DataConfig(datasets_to_split="all"),
        preprocessor=preprocessor,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="tumours"),
    ).fit()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_files(directory)
        result = fit(directory)
    table = result.metrics_dataframe
    for epoch, right, rows in zip(table["epoch"], table["right"], table["rows"], strict=True):
        print(f"epoch {epoch}: {right} of {rows} test rows right")
    print(f"test accuracy: {result.metrics['right'] / result.metrics['rows']:.1%}")


if __name__ == "__main__":
    main()
