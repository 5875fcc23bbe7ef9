"""What max_overhead=0.03 costs the loops of two workers whose steps take 5 ms, and which ask in every step.

Argument: for how many seconds they run. A step is a sleep, so everything else is overhead. Rank 0 is measured.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

from benchmarks import workload
from paceline.air import session
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig

STEP_S = 0.005
STATE_BYTES = 1_000_000


def train_in_short_steps(config: dict[str, Any]) -> None:
    from paceline import train

    running: Any = session.current()
    state = bytes(STATE_BYTES)
    slept, taken = 0.0, 0
    began = time.monotonic()
    for step in range(round(config["seconds"] / STEP_S)):
        lay_down = time.monotonic()
        time.sleep(STEP_S)
        slept += time.monotonic() - lay_down
        checkpoint = None
        if train.should_checkpoint():
            taken += 1
            checkpoint = Checkpoint.from_dict({"step": step, "state": state})
        train.report({"taken": taken}, checkpoint=checkpoint)
    elapsed = time.monotonic() - began
    questions = running.questions
    figures = {"elapsed": elapsed, "outside": elapsed - slept, "saving": questions.saving_s, "taken": taken}
    figures["asking"] = questions.asking_s
    if running.world_rank == 0:
        (workload.place() / "figures.json").write_text(json.dumps(figures))


def main(seconds: float) -> None:
    DataParallelTrainer(
        train_in_short_steps,
        train_loop_config={"seconds": seconds},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=2, max_overhead=0.03), verbose=0),
    ).fit()
    figures = json.loads((workload.place() / "figures.json").read_text())
    shutil.rmtree(workload.place() / "results", ignore_errors=True)
    workload.write_out(figures)


if __name__ == "__main__":
    main(float(sys.argv[1]))
