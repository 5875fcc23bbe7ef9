"""LightGBM in two processes with a thread each, by hand. Argument: the folder of training rows.

What its own way of training together costs, with nothing around it: LightGBM is imported once and then forked, and each
process reads half of the files.
"""

from __future__ import annotations

import os
import socket
import sys
import time

import lightgbm
import pyarrow.parquet as pq

from benchmarks import data_workload, tree_workload, workload
from benchmarks.tree_workload import LABEL, WORKERS


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def train(rank: int, folder: str, ports: list[int]) -> None:
    began = time.monotonic()
    files = data_workload.files_in(folder)
    half = pq.read_table(files[rank * len(files) // WORKERS : (rank + 1) * len(files) // WORKERS], use_threads=False)
    params = {
        **tree_workload.PARAMS["lightgbm"],
        "num_threads": 1,
        "tree_learner": "data",
        "pre_partition": True,
        "num_machines": WORKERS,
        "machines": ",".join(f"127.0.0.1:{port}" for port in ports),
        "local_listen_port": ports[rank],
    }
    matrix = lightgbm.Dataset(half.drop([LABEL]), half[LABEL], params=params)
    clock, history = tree_workload.RoundClock(), dict[str, dict[str, list[float]]]()
    model = lightgbm.train(
        params,
        matrix,
        tree_workload.ROUNDS,
        valid_sets=[matrix],
        valid_names=["train"],
        callbacks=[lightgbm.record_evaluation(history), lambda _: clock.round_ended()],
    )
    if rank == 0:
        model.save_model(workload.place() / "model.txt")
        losses = {"train": history["train"]["binary_logloss"][-1]}
        workload.write_out({"began": began, "stamps": clock.stamps, "losses": losses})
    model.free_network()


def main(folder: str) -> None:
    ports = [free_port() for _ in range(WORKERS)]
    children = []
    for rank in range(WORKERS):
        child = os.fork()
        if child == 0:
            train(rank, folder, ports)
            os._exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        raise SystemExit("a process failed")


if __name__ == "__main__":
    main(sys.argv[1])
