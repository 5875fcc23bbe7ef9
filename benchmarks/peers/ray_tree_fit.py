"""A fit of Ray's XGBoostTrainer or LightGBMTrainer with 2 workers, which report each round and the final model.

Arguments: xgboost or lightgbm, and the folder of training rows.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray import train

from benchmarks import tree_workload, workload
from benchmarks.peers import ray_setup


def shard() -> tuple[Any, Any]:
    """This worker's features and labels, the way Ray's guide takes them."""
    frame = train.get_dataset_shard("train").materialize().to_pandas()
    return frame.drop(columns=tree_workload.LABEL).astype("float32"), frame[tree_workload.LABEL].astype("int64")


def save(clock: tree_workload.RoundClock, loss: float) -> None:
    if train.get_context().get_world_rank() == 0:
        saved = {"stamps": clock.stamps, "losses": {"train": loss}}
        (workload.place() / "rank-0.json").write_text(json.dumps(saved))


def train_xgboost(config: dict[str, Any]) -> None:
    import xgboost
    from ray.train.xgboost import RayTrainReportCallback
    from xgboost.callback import TrainingCallback

    class Clock(tree_workload.RoundClock, TrainingCallback):
        def after_iteration(self, *_: object) -> bool:
            self.round_ended()
            return False

    features, label = shard()
    matrix = xgboost.QuantileDMatrix(features, label)
    clock, history = Clock(), dict[str, dict[str, list[float]]]()
    xgboost.train(
        tree_workload.PARAMS["xgboost"],
        matrix,
        tree_workload.ROUNDS,
        evals=[(matrix, "train")],
        evals_result=history,
        verbose_eval=False,
        callbacks=[RayTrainReportCallback(), clock],
    )
    save(clock, history["train"]["logloss"][-1])


def train_lightgbm(config: dict[str, Any]) -> None:
    import lightgbm
    from ray.train.lightgbm import RayTrainReportCallback, get_network_params

    params = {
        **tree_workload.PARAMS["lightgbm"],
        "tree_learner": "data_parallel",
        "pre_partition": True,
        **get_network_params(),
    }
    features, label = shard()
    matrix = lightgbm.Dataset(features, label, params=params).construct()
    clock, history = tree_workload.RoundClock(), dict[str, dict[str, list[float]]]()
    lightgbm.train(
        params,
        matrix,
        tree_workload.ROUNDS,
        valid_sets=[matrix],
        valid_names=["train"],
        callbacks=[
            lightgbm.record_evaluation(history), RayTrainReportCallback(), lambda _: clock.round_ended(),
        ],
    )  # fmt: skip
    save(clock, history["train"]["binary_logloss"][-1])


def trainer(library: str, **options: Any) -> Any:
    if library == "xgboost":
        from ray.train.xgboost import XGBoostTrainer

        return XGBoostTrainer(train_xgboost, **options)
    from ray.train.lightgbm import LightGBMTrainer

    return LightGBMTrainer(train_lightgbm, **options)


def main(library: str, folder: str) -> None:
    ray_setup.start()
    datasets = {"train": ray.data.read_parquet(folder)}
    trainer(library, datasets=datasets, **ray_setup.configs(tree_workload.WORKERS)).fit()
    ray.shutdown()
    workload.write_out(json.loads((workload.place() / "rank-0.json").read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
