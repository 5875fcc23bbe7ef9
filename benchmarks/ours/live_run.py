"""A run that reports one row at a time, and notes when. Arguments: its name, the results directory, how many rows.

It reports a first row, waits for the file `go`, and writes `sent.json` at the end: the time of each row, by its value.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks import workload
from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.train import DataParallelTrainer

PAUSE_S = 0.37
"""Not a multiple of what anybody polls with."""


def train_slowly(config: dict[str, Any]) -> None:
    place = workload.place()
    train.report({"value": 0})
    (place / "reported").touch()
    while not (place / "go").exists():
        time.sleep(0.01)
    sent = {}
    for number in range(1, config["rows"] + 1):
        time.sleep(PAUSE_S)
        sent[number] = time.time()
        train.report({"value": number})
    (place / "sent.part").write_text(json.dumps(sent))
    (place / "sent.part").rename(place / "sent.json")
    while not (place / "done").exists():  # alive, until the last row was seen
        time.sleep(0.01)


def main(name: str, root: str, rows: int) -> None:
    DataParallelTrainer(
        train_slowly,
        train_loop_config={"rows": rows},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name=name, storage_path=root),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
