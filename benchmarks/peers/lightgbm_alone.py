"""LightGBM in one process with two threads. Arguments: the folder of training rows, and one of validation rows or none.

Everything is chosen for speed: all Parquet files in one call with threads, Arrow's columns straight into the bins,
no pandas.
"""

from __future__ import annotations

import sys
import time

import lightgbm
import pyarrow.parquet as pq

from benchmarks import tree_workload, workload

PARAMS = {**tree_workload.PARAMS["lightgbm"], "num_threads": tree_workload.WORKERS}


def matrix(folder: str, reference: lightgbm.Dataset | None = None) -> lightgbm.Dataset:
    table = pq.read_table(folder)
    features = table.drop([tree_workload.LABEL])
    return lightgbm.Dataset(features, table[tree_workload.LABEL], reference=reference, params=PARAMS).construct()


def main(folder: str, valid_folder: str | None = None) -> None:
    began = time.monotonic()
    train = matrix(folder)
    sets = {"train": train}
    if valid_folder:
        sets["valid"] = matrix(valid_folder, train)
    clock, history = tree_workload.RoundClock(), dict[str, dict[str, list[float]]]()
    model = lightgbm.train(
        PARAMS,
        train,
        tree_workload.ROUNDS,
        valid_sets=list(sets.values()),
        valid_names=list(sets),
        callbacks=[lightgbm.record_evaluation(history), lambda _: clock.round_ended()],
    )
    model.save_model(workload.place() / "model.txt")
    losses = {name: values["binary_logloss"][-1] for name, values in history.items()}
    workload.write_out({"began": began, "stamps": clock.stamps, "losses": losses})


if __name__ == "__main__":
    main(*sys.argv[1:])
