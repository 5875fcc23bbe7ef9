"""CartPole: what the tests of RLTrainer train, and how they tell a policy from chance. Random play reaches about 22."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rl_workload import SETTINGS as PPO

QUICK: dict[str, Any] = {**PPO, "train_batch_size": 200, "num_sgd_iter": 1}
"""Learns next to nothing: for tests of everything else."""
RANDOM_RETURN = 22.0


def mean_return(act: Callable[[np.ndarray], Any], episodes: int = 20) -> float:
    """The mean return of a way to act, in the same episodes for everything that is compared."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    returns = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=1000 + seed)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(int(act(observation)))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return float(np.mean(returns))
