"""The reinforcement learning that both sides do: PPO plays CartPole, with the same settings and the same seed."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "lr": 3e-4,
    "train_batch_size": 2000,
    "sgd_minibatch_size": 128,
    "num_sgd_iter": 6,
    "num_envs_per_worker": 8,
    "seed": 1,
}
"""As RLTrainer takes them."""


def rllib_config(env_runners: int) -> Any:
    """The same for RLlib alone, under its own names."""
    from ray.rllib.algorithms.ppo import PPOConfig

    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=env_runners, num_envs_per_env_runner=8)
        .training(lr=3e-4, train_batch_size_per_learner=2000, minibatch_size=128, num_epochs=6)
        .learners(num_learners=0)
        .debugging(seed=1)
    )
