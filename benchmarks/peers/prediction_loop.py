"""Passes over Parquet files with a loop written by hand: pyarrow's batches as they come, and the model.

Arguments: xgboost, lightgbm or torch; the folder of the model; the folder of rows; write or count; how many passes.
The model gets a matrix of numpy, which is the quickest that each of them takes, and uses all cores by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data_workload, prediction_workload
from benchmarks.tree_workload import FEATURES


def load(framework: str, folder: str) -> Any:
    """The function from a matrix of features to predictions."""
    if framework == "xgboost":
        import xgboost

        return xgboost.Booster(model_file=f"{folder}/model.ubj").inplace_predict
    if framework == "lightgbm":
        import lightgbm

        return lightgbm.Booster(model_file=f"{folder}/model.txt").predict
    import torch

    network = prediction_workload.mlp()
    network.load_state_dict(torch.load(f"{folder}/model.pt"))
    network.eval()

    def call(rows: np.ndarray) -> Any:
        with torch.inference_mode():
            return network(torch.from_numpy(rows)).numpy()

    return call


def main(framework: str, folder: str, rows: str, how: str, passes: int) -> None:
    def predict(target: Path | None) -> tuple[int, float]:
        model = load(framework, folder)
        if target is not None:
            target.mkdir()
        seen, total = 0, 0.0
        for number, file in enumerate(data_workload.files_in(rows)):
            writer: pq.ParquetWriter | None = None
            for batch in pq.ParquetFile(file).iter_batches(columns=list(FEATURES)):
                values = model(np.column_stack([column.to_numpy() for column in batch.columns]))
                if target is None:
                    seen += len(values)
                    total += float(values.sum(dtype="float64"))
                    continue
                predictions = pa.record_batch({"predictions": values})
                writer = writer or pq.ParquetWriter(target / f"{number}.parquet", predictions.schema)
                writer.write_batch(predictions)
            if writer is not None:
                writer.close()
        return seen, total

    prediction_workload.time_passes(predict, passes, write=how == "write")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
