"""A fit of XGBoostTrainer or LightGBMTrainer with 2 workers.

Arguments: xgboost or lightgbm, the folder of training rows, and one of validation rows or none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import tree_workload, workload
from paceline import data
from paceline.train import ScalingConfig


def trainer_class(library: str) -> Any:
    if library == "xgboost":
        from paceline.train.xgboost import XGBoostTrainer

        return XGBoostTrainer
    from paceline.train.lightgbm import LightGBMTrainer

    return LightGBMTrainer


def main(library: str, *folders: str) -> None:
    result = trainer_class(library)(
        params=tree_workload.PARAMS[library],
        label_column=tree_workload.LABEL,
        num_boost_round=tree_workload.ROUNDS,
        datasets={name: data.read_parquet(folder) for name, folder in zip(("train", "valid"), folders, strict=False)},
        scaling_config=ScalingConfig(num_workers=tree_workload.WORKERS),
    ).fit()
    metric = tree_workload.METRIC[library]
    rows = [json.loads(line) for line in (Path(result.path) / "result.json").open()]  # a dataframe would import pandas
    losses = {name: result.metrics[f"{name}-{metric}"] for name in ("train", "valid")[: len(folders)]}
    workload.write_out({"began": 0.0, "stamps": [row["time_total_s"] for row in rows], "losses": losses})


if __name__ == "__main__":
    main(*sys.argv[1:])
