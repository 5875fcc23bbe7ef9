"""Passes of BatchPredictor over Parquet files, with its default settings.

Arguments: xgboost, lightgbm or torch; the folder of the model; the folder of rows; write or count; how many passes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import prediction_workload
from benchmarks.tree_workload import FEATURES
from paceline import data
from paceline.train.batch_predictor import BatchPredictor


def predictor(framework: str, checkpoint: str) -> BatchPredictor:
    if framework == "xgboost":
        from paceline.train.xgboost import XGBoostPredictor

        return BatchPredictor(checkpoint, XGBoostPredictor)
    if framework == "lightgbm":
        from paceline.train.lightgbm import LightGBMPredictor

        return BatchPredictor(checkpoint, LightGBMPredictor)
    from paceline.train.torch import TorchPredictor

    return BatchPredictor(checkpoint, TorchPredictor, model=prediction_workload.mlp())


def main(framework: str, model: str, rows: str, how: str, passes: int) -> None:
    def predict(target: Path | None) -> tuple[int, float]:
        table = data.read_parquet(rows, columns=list(FEATURES))
        predictions = predictor(framework, f"{model}/checkpoint").predict(table)
        if target is not None:
            predictions.write_parquet(str(target))
            return 0, 0.0
        seen, total = 0, 0.0
        for batch in predictions.iter_batches(batch_size=None, batch_format="numpy"):
            values: Any = batch["predictions"]
            seen += len(values)
            total += float(values.sum(dtype="float64"))
        return seen, total

    prediction_workload.time_passes(predict, passes, write=how == "write")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
