"""A fit of RLTrainer. Arguments: env runners, and how many iterations."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import rl_workload, workload
from paceline.air import CheckpointConfig, RunConfig
from paceline.train.rl import RLTrainer
from paceline.tune import Callback


class Clock(Callback):
    """Notes when the program sees the row of an iteration, and what the episodes gave."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.returns: list[float] = []

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        self.stamps.append(time.monotonic())
        self.returns.append(result["episode_reward_mean"])


def trainer(env_runners: int, iterations: int, clock: Clock) -> RLTrainer:
    # By config, because num_workers=0 is not allowed.
    return RLTrainer(
        "PPO",
        config={**rl_workload.SETTINGS, "num_env_runners": env_runners},
        run_config=RunConfig(
            stop={"training_iteration": iterations},
            callbacks=[clock],
            checkpoint_config=CheckpointConfig(checkpoint_at_end=False),  # RLlib alone saves none either
        ),
    )


def main(env_runners: int, iterations: int) -> None:
    clock = Clock()
    trainer(env_runners, iterations, clock).fit()
    workload.write_out({"stamps": clock.stamps, "returns": clock.returns})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
