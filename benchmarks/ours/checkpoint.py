"""How long report() blocks the loop for a 200 MB directory, in turn with cp + fsync of the same directory.

Arguments: sync or async, and how many times.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import workload
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig


def train_and_save(config: dict[str, Any]) -> None:
    from paceline import train

    here = workload.place()
    source = workload.write_checkpoint(here / "source")
    figures: dict[str, list[float]] = {"copied": [], "blocked": []}
    for step in range(config["repeats"]):
        os.sync()
        figures["copied"].append(workload.copy_and_sync(source, here / "copy"))
        given = source
        if config["async"]:
            given = (here / "copy").rename(here / f"given-{step}")
        else:
            shutil.rmtree(here / "copy")
        os.sync()  # neither side pays for what the other left to be written or deleted
        started = time.perf_counter()
        train.report({"step": step}, checkpoint=Checkpoint.from_directory(given))
        figures["blocked"].append(time.perf_counter() - started)
        if config["async"]:
            time.sleep(1.0)  # the training that goes on while the checkpoint is written
    (here / "figures.json").write_text(json.dumps(figures))


def main(mode: str, repeats: int) -> None:
    result = DataParallelTrainer(
        train_and_save,
        train_loop_config={"repeats": repeats, "async": mode == "async"},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=2, async_save=mode == "async")),
    ).fit()
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as kept:
        sizes = [path.stat().st_size for path in Path(kept).glob("shard-*.bin")]
    if sum(sizes) != workload.CHECKPOINT_BYTES:
        raise SystemExit(f"the kept checkpoint is not whole: {sizes}")
    workload.write_out(json.loads((workload.place() / "figures.json").read_text()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
