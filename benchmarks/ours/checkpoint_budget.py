"""What checkpoints of 200 MB cost a loop with max_overhead=0.03, when the store takes 20 MB/s.

Argument: for how many seconds it runs. A step is a sleep of 50 ms, so everything else is overhead: what the session
accounts for is compared with that.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import time
from typing import Any

from benchmarks import workload
from paceline.air import session
from paceline.testing import chaos
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.tune import Callback

STEP_S = 0.05
STORE_BYTES_PER_S = 20e6


def train_with_budget(config: dict[str, Any]) -> None:
    from paceline import train

    here = workload.place()
    state = bytes(workload.CHECKPOINT_BYTES // workload.CHECKPOINT_FILES)
    running: Any = session.current()
    slept, taken = 0.0, []
    began = time.monotonic()
    while time.monotonic() < began + config["seconds"]:
        lay_down = time.monotonic()
        time.sleep(STEP_S)
        slept += time.monotonic() - lay_down
        checkpoint = None
        if train.should_checkpoint():
            taken.append(time.monotonic())
            folder = here / f"snapshot-{len(taken)}"
            folder.mkdir()
            for number in range(workload.CHECKPOINT_FILES):
                (folder / f"shard-{number}.bin").write_bytes(state)
            checkpoint = Checkpoint.from_directory(folder)
        train.report({"taken": taken[-1] if taken else 0.0}, checkpoint=checkpoint)
    elapsed = time.monotonic() - began
    accounted = running.questions.saving_s + running.questions.asking_s
    figures = {"elapsed": elapsed, "outside": elapsed - slept, "accounted": accounted, "taken": taken}
    figures["asking"] = running.questions.asking_s
    (here / "figures.json").write_text(json.dumps(figures))


class Commits(Callback):
    """When checkpoints were committed, by the clock that the loop uses."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Checkpoint, **info: Any) -> None:
        self.at.append(time.monotonic())


def main(seconds: float) -> None:
    commits = Commits()
    with chaos(slow_storage={"bytes_per_second": STORE_BYTES_PER_S}):
        DataParallelTrainer(
            train_with_budget,
            train_loop_config={"seconds": seconds},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                checkpoint_config=CheckpointConfig(num_to_keep=2, max_overhead=0.03), callbacks=[commits], verbose=0
            ),
        ).fit()
    figures = json.loads((workload.place() / "figures.json").read_text())
    taken = figures["taken"]
    intervals = [after - before for before, after in itertools.pairwise(taken)]
    # Just before a checkpoint is committed, the newest one is the one before it.
    ages = [commit - before for before, commit in zip(taken, commits.at[1:], strict=False)]
    figures["age_in_intervals"] = [age / interval for age, interval in zip(ages, intervals, strict=False)]
    figures["intervals"] = intervals
    shutil.rmtree(workload.place() / "results", ignore_errors=True)
    workload.write_out(figures)


if __name__ == "__main__":
    main(float(sys.argv[1]))
