"""XGBoost in one process with two threads. Arguments: the folder of training rows, and one of validation rows or none.

Everything is chosen for speed: all Parquet files in one call with threads, Arrow's columns straight into the matrix
of quantiles, no pandas.
"""

from __future__ import annotations

import sys
import time

import pyarrow.parquet as pq
import xgboost
from xgboost.callback import TrainingCallback

from benchmarks import tree_workload, workload


class Clock(tree_workload.RoundClock, TrainingCallback):
    def after_iteration(self, *_: object) -> bool:
        self.round_ended()
        return False


def matrix(folder: str, reference: xgboost.DMatrix | None = None) -> xgboost.QuantileDMatrix:
    table = pq.read_table(folder)
    label = table[tree_workload.LABEL].to_numpy()
    return xgboost.QuantileDMatrix(
        table.drop([tree_workload.LABEL]), label, ref=reference, nthread=tree_workload.WORKERS
    )


def main(folder: str, valid_folder: str | None = None) -> None:
    began = time.monotonic()
    train = matrix(folder)
    evals = [(train, "train")]
    if valid_folder:
        evals.append((matrix(valid_folder, train), "valid"))
    clock, history = Clock(), dict[str, dict[str, list[float]]]()
    model = xgboost.train(
        {**tree_workload.PARAMS["xgboost"], "nthread": tree_workload.WORKERS},
        train,
        tree_workload.ROUNDS,
        evals=evals,
        evals_result=history,
        verbose_eval=False,
        callbacks=[clock],
    )
    model.save_model(workload.place() / "model.ubj")
    losses = {name: values["logloss"][-1] for name, values in history.items()}
    workload.write_out({"began": began, "stamps": clock.stamps, "losses": losses})


if __name__ == "__main__":
    main(*sys.argv[1:])
