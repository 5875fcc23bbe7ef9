"""Train a model and save it twice: as the framework does, for the peers, and as a checkpoint.

Arguments: xgboost, lightgbm or torch; the folder of training rows; the folder to save in.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import prediction_workload, tree_workload
from benchmarks.tree_workload import FEATURES, LABEL, PARAMS, ROUNDS


def save_xgboost(rows: Any, folder: Path) -> Any:
    import xgboost

    from paceline.train.xgboost import XGBoostCheckpoint

    matrix = xgboost.QuantileDMatrix(rows.select(FEATURES), rows[LABEL].to_numpy())
    model = xgboost.train(PARAMS["xgboost"], matrix, ROUNDS)
    model.save_model(folder / "model.ubj")
    return XGBoostCheckpoint.from_model(model)


def save_lightgbm(rows: Any, folder: Path) -> Any:
    import lightgbm

    from paceline.train.lightgbm import LightGBMCheckpoint

    model = lightgbm.train(PARAMS["lightgbm"], lightgbm.Dataset(rows.select(FEATURES), rows[LABEL]), ROUNDS)
    model.save_model(folder / "model.txt")
    return LightGBMCheckpoint.from_model(model)


def save_torch(rows: Any, folder: Path) -> Any:
    """Weights as they were drawn: how good they are does not matter here."""
    import torch

    from paceline.data.preprocessors import Concatenator
    from paceline.train.torch import TorchCheckpoint

    weights = prediction_workload.mlp().state_dict()
    torch.save(weights, folder / "model.pt")
    return TorchCheckpoint.from_state_dict(weights, preprocessor=Concatenator(include=list(tree_workload.FEATURES)))


def main(framework: str, rows: str, target: str) -> None:
    save = {"xgboost": save_xgboost, "lightgbm": save_lightgbm, "torch": save_torch}[framework]
    folder = Path(target)
    folder.mkdir()
    some = pq.read_table(rows).slice(0, 50_000)
    save(some, folder).to_directory(str(folder / "checkpoint"))


if __name__ == "__main__":
    main(*sys.argv[1:])
