"""Finished runs, each in an experiment of its own. Arguments: where, and how many."""

from __future__ import annotations

import sys


def train_steps() -> None:
    from paceline import train
    from paceline.train import Checkpoint

    for step in range(3):
        train.report({"loss": 1 / (step + 1), "step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def main(root: str, count: int) -> None:
    from paceline.train import CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig

    for number in range(count):
        DataParallelTrainer(
            train_steps,
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                name=f"experiment-{number:04d}",
                storage_path=root,
                engine="inline",
                verbose=0,
                stop={"training_iteration": 10},
                checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss"),
            ),
        ).fit()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
