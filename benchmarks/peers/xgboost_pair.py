"""XGBoost in two processes with a thread each, by hand. Argument: the folder of training rows.

What its own way of training together costs, with nothing around it: XGBoost is imported once and then forked, each
process reads half of the files, and XGBoost's tracker brings them together.
"""

from __future__ import annotations

import json
import os
import sys
import time

import pyarrow.parquet as pq
import xgboost
from xgboost.collective import CommunicatorContext
from xgboost.tracker import RabitTracker

from benchmarks import data_workload, tree_workload, workload
from benchmarks.peers.xgboost_alone import Clock
from benchmarks.tree_workload import LABEL, WORKERS


def train(rank: int, folder: str, tracker: dict[str, int | str]) -> None:
    began = time.monotonic()
    files = data_workload.files_in(folder)
    half = pq.read_table(files[rank * len(files) // WORKERS : (rank + 1) * len(files) // WORKERS], use_threads=False)
    clock, history = Clock(), dict[str, dict[str, list[float]]]()
    with CommunicatorContext(**tracker):
        matrix = xgboost.QuantileDMatrix(half.drop([LABEL]), half[LABEL].to_numpy(), nthread=1)
        model = xgboost.train(
            {**tree_workload.PARAMS["xgboost"], "nthread": 1},
            matrix,
            tree_workload.ROUNDS,
            evals=[(matrix, "train")],
            evals_result=history,
            verbose_eval=False,
            callbacks=[clock],
        )
    if rank == 0:
        model.save_model(workload.place() / "model.ubj")
        losses = {"train": history["train"]["logloss"][-1]}
        workload.write_out({"began": began, "stamps": clock.stamps, "losses": losses})


def main(folder: str) -> None:
    pipes = [os.pipe() for _ in range(WORKERS)]
    children = []
    for rank, (reading, _) in enumerate(pipes):
        child = os.fork()
        if child == 0:
            train(rank, folder, json.loads(os.read(reading, 10_000)))
            os._exit(0)
        children.append(child)
    tracker = RabitTracker(host_ip="127.0.0.1", n_workers=WORKERS)
    tracker.start()
    for _, writing in pipes:
        os.write(writing, json.dumps(tracker.worker_args()).encode())
    if any(os.waitpid(child, 0)[1] for child in children):
        raise SystemExit("a process failed")
    tracker.wait_for()


if __name__ == "__main__":
    main(sys.argv[1])
