"""How long Ray's report() blocks the loop for a 200 MB directory. Argument: how many times."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import ray
from ray import train

from benchmarks import workload
from benchmarks.peers import ray_setup


def train_and_save(config: dict[str, Any]) -> None:
    blocked = []
    source = workload.write_checkpoint(workload.place() / "source")
    for step in range(config["repeats"]):
        os.sync()
        started = time.perf_counter()
        train.report({"step": step}, checkpoint=train.Checkpoint.from_directory(str(source)))
        blocked.append(time.perf_counter() - started)
    (workload.place() / "blocked.json").write_text(json.dumps(blocked))


def main(repeats: int) -> None:
    ray_setup.start()
    ray_setup.plain_trainer(train_and_save, {"repeats": repeats}, 1).fit()
    ray.shutdown()
    workload.write_out({"blocked": json.loads((workload.place() / "blocked.json").read_text())})


if __name__ == "__main__":
    main(int(sys.argv[1]))
