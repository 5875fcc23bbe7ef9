"""The guides' examples with datasets: torch, Hugging Face, and a model of trees fitted on a worker's rows.

The guides name files for most of them; what is written here does what those do: linear regression on
made-up items, a split of a CSV file, a text dataset, and boosted trees on the breast cancer table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import paceline.data
from paceline import train
from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.data.preprocessors import Chain, Concatenator, StandardScaler
from paceline.testing.invariants import check_run
from paceline.train import DataParallelTrainer
from paceline.train.torch import TorchCheckpoint, TorchTrainer

TWO = ScalingConfig(num_workers=2)
QUIET = RunConfig(verbose=0)


# -- torch --------------------------------------------------------------------------------


def fit_a_line(config: dict[str, Any]) -> None:
    """y = 2x + 1, as the torch starter example learns it."""
    import torch

    torch.manual_seed(0)
    shard = session.get_dataset_shard("train")
    model = train.torch.prepare_model(torch.nn.Linear(1, 1))
    loss_fn = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
        model.train()
        losses = []
        for batch in shard.iter_torch_batches(batch_size=config["batch_size"], dtypes=torch.float32):
            x, y = batch["x"].unsqueeze(1), batch["y"].unsqueeze(1)
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        session.report(
            {"epoch": epoch, "loss": sum(losses) / len(losses)}, checkpoint=TorchCheckpoint.from_model(model)
        )


def line(rows: int) -> list[dict[str, float]]:
    return [{"x": x / rows, "y": 2 * x / rows + 1} for x in range(rows)]


@pytest.mark.parametrize(
    "make",
    [
        paceline.data.from_items,
        pytest.param(lambda rows: paceline.data.from_pandas(pd.DataFrame(rows)), marks=pytest.mark.slow),
    ],
)
def test_torch_learns_a_line_from_a_dataset(make: Any) -> None:
    trainer = TorchTrainer(
        fit_a_line,
        train_loop_config={"lr": 0.3, "epochs": 8, "batch_size": 10},
        scaling_config=TWO,
        run_config=QUIET,
        datasets={"train": make(line(200))},
    )
    result = trainer.fit()
    check_run(result.path, result=result)
    assert result.metrics["epoch"] == 7
    assert result.metrics["loss"] < 0.01 < result.metrics_dataframe["loss"][0]
    assert isinstance(result.checkpoint, Checkpoint)
    import torch

    model = TorchCheckpoint.from_checkpoint(result.checkpoint).get_model(torch.nn.Linear(1, 1))
    assert model(torch.tensor([[0.5]])).item() == pytest.approx(2.0, abs=0.1)


def train_and_validate(config: dict[str, Any]) -> None:
    train_data_shard = session.get_dataset_shard("train")
    validation_data_shard = train.get_dataset_shard("validation")
    ids = [int(number) for batch in train_data_shard.iter_batches() for number in batch["id"]]
    held_out = [int(number) for batch in validation_data_shard.iter_batches() for number in batch["id"]]
    session.report({"train": ids, "validation": held_out})


def test_a_random_split_of_a_csv_file_into_training_and_validation_data(tmp_path: Path) -> None:
    pd.DataFrame({"id": range(100), "x": np.arange(100.0)}).to_csv(tmp_path / "rows.csv", index=False)
    dataset = paceline.data.read_csv(str(tmp_path / "rows.csv"))
    train_dataset, validation_dataset = dataset.train_test_split(test_size=0.2, shuffle=True)
    trainer = TorchTrainer(
        train_and_validate,
        datasets={"train": train_dataset, "validation": validation_dataset},
        scaling_config=TWO,
        run_config=QUIET,
    )
    first, second = trainer.fit().rank_metrics.values()
    assert len(first["train"]) == len(second["train"]) == 40
    assert first["validation"] == second["validation"]
    assert len(first["validation"]) == 20
    assert sorted([*first["train"], *second["train"], *first["validation"]]) == list(range(100))
    assert sorted(first["train"]) != first["train"]


def classify(config: dict[str, Any]) -> None:
    import torch

    shard = session.get_dataset_shard("train")
    model = train.torch.prepare_model(torch.nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        for batch in shard.iter_torch_batches(batch_size=16):
            loss = torch.nn.functional.cross_entropy(model(batch["features"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    rows = session.get_dataset_shard("valid").to_pandas()
    with torch.no_grad():
        found = model(torch.from_numpy(np.stack(list(rows["features"])))).argmax(1).numpy()
    session.report({"accuracy": float((found == rows["label"]).mean())}, checkpoint=Checkpoint.from_dict({}))


def test_features_are_scaled_and_concatenated_by_a_preprocessor_in_the_checkpoint() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    frame = pd.DataFrame({"a": labels * 40.0 + rng.normal(0, 5, 400), "b": rng.normal(7, 3, 400), "label": labels})
    train_dataset, valid_dataset = paceline.data.from_pandas(frame).train_test_split(0.25, shuffle=True, seed=1)
    preprocessor = Chain(
        StandardScaler(columns=["a", "b"]),
        Concatenator(include=["a", "b"], output_column_name="features", dtype=np.float32),
    )
    result = TorchTrainer(
        classify,
        scaling_config=TWO,
        run_config=QUIET,
        datasets={"train": train_dataset, "valid": valid_dataset},
        preprocessor=preprocessor,
    ).fit()
    assert result.metrics["accuracy"] > 0.95
    assert result.checkpoint is not None
    stored: Any = result.checkpoint.get_preprocessor()
    batch = stored.transform_batch(pd.DataFrame({"a": [20.0], "b": [7.0], "label": [0]}))
    assert np.asarray(batch["features"][0]).shape == (2,)


# -- Hugging Face -------------------------------------------------------------------------


def learn_from_text(config: dict[str, Any]) -> None:
    import torch

    torch.manual_seed(0)
    shard = session.get_dataset_shard("train")
    model = train.torch.prepare_model(torch.nn.Linear(26, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)

    def collate(batch: dict[str, np.ndarray]) -> tuple[Any, Any]:
        letters = torch.zeros(len(batch["text"]), 26)
        for row, text in enumerate(batch["text"]):
            for letter in text:
                letters[row, ord(letter) - ord("a")] += 1
        return letters, torch.from_numpy(batch["label"])

    for epoch in range(4):
        right = total = 0
        for letters, labels in shard.iter_torch_batches(batch_size=20, collate_fn=collate):
            logits = model(letters)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((logits.argmax(1) == labels).sum())
            total += len(labels)
        session.report({"epoch": epoch, "accuracy": right / total, "rows": total})


def test_a_hugging_face_dataset_feeds_a_torch_loop() -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"text": ["good"] * 60 + ["bad"] * 60, "label": [1] * 60 + [0] * 60}
    hugging_face = datasets.Dataset.from_dict(rows).shuffle(seed=1)
    result = TorchTrainer(
        learn_from_text,
        scaling_config=TWO,
        run_config=QUIET,
        datasets={"train": paceline.data.from_huggingface(hugging_face)},
    ).fit()
    check_run(result.path, result=result)
    assert result.metrics["accuracy"] == 1.0
    assert [metrics["rows"] for metrics in result.rank_metrics.values()] == [60, 60]


# -- trees --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def breast_cancer(tmp_path_factory: pytest.TempPathFactory) -> str:
    from sklearn.datasets import load_breast_cancer

    path = tmp_path_factory.mktemp("cancer") / "breast_cancer.csv"
    load_breast_cancer(as_frame=True).frame.to_csv(path, index=False)
    return str(path)


def grow_trees(config: dict[str, Any]) -> None:
    """Every worker grows trees of its own on its own rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = session.get_dataset_shard("train").to_pandas()
    valid = session.get_dataset_shard("valid").to_pandas()
    model = HistGradientBoostingClassifier(max_iter=config["rounds"], random_state=0)
    model.fit(rows.drop(columns="target"), rows["target"])
    accuracy = float(model.score(valid.drop(columns="target"), valid["target"]))
    session.report(
        {"accuracy": accuracy, "rows": len(rows), "valid": len(valid)},
        checkpoint=Checkpoint.from_dict({"model": model}),
    )


def test_trees_grow_on_the_rows_of_each_worker(breast_cancer: str) -> None:
    dataset = paceline.data.read_csv(breast_cancer)
    train_dataset, valid_dataset = dataset.train_test_split(test_size=0.3, shuffle=True, seed=0)
    result = DataParallelTrainer(
        grow_trees,
        train_loop_config={"rounds": 20},
        scaling_config=TWO,
        run_config=RunConfig(verbose=0, checkpoint_config=CheckpointConfig(num_to_keep=1)),
        datasets={"train": train_dataset, "valid": valid_dataset},
        preprocessor=StandardScaler(columns=["mean radius", "mean texture"]),
    ).fit()
    check_run(result.path, result=result)
    for metrics in result.rank_metrics.values():
        assert metrics["accuracy"] > 0.9
        assert (metrics["rows"], metrics["valid"]) == (199, 171)
    assert result.checkpoint is not None
    model, preprocessor = result.checkpoint.to_dict()["model"], result.checkpoint.get_preprocessor()
    assert preprocessor is not None
    rows = preprocessor.transform_batch(dataset.to_pandas().head(5))
    assert model.predict(rows.drop(columns="target")).tolist() == rows["target"].tolist()
