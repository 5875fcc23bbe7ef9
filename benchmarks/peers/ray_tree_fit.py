"""A fit of Ray's XGBoostTrainer or LightGBMTrainer with 2 workers, in the form that takes the library's parameters.

Arguments: xgboost or lightgbm, and the folder of training rows. That form needs the first generation of Ray Train. The
second one reports 0.6 rounds per second, which is slower by far.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["RAY_TRAIN_V2_ENABLED"] = "0"  # read when ray.train is imported

import ray

from benchmarks import tree_workload, workload
from benchmarks.peers import ray_setup
from benchmarks.tree_workload import ROUNDS


def trainer_class(library: str) -> Any:
    if library == "xgboost":
        from ray.train.xgboost import XGBoostTrainer

        return XGBoostTrainer
    from ray.train.lightgbm import LightGBMTrainer

    return LightGBMTrainer


def main(library: str, folder: str) -> None:
    ray_setup.start()
    result = trainer_class(library)(
        params=tree_workload.PARAMS[library],
        label_column=tree_workload.LABEL,
        num_boost_round=ROUNDS,
        datasets={"train": ray.data.read_parquet(folder)},
        **ray_setup.configs(tree_workload.WORKERS),
    ).fit()
    ray.shutdown()
    rows = result.metrics_dataframe[:ROUNDS]  # the checkpoint has one more
    loss = result.metrics[f"train-{tree_workload.METRIC[library]}"]
    workload.write_out({"stamps": list(rows["time_total_s"]), "losses": {"train": loss}})


if __name__ == "__main__":
    main(*sys.argv[1:])
