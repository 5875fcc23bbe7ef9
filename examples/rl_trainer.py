"""PPO of RLlib learns to balance a pole: two processes play, one learns.

CartPole gives a point for each step until the pole falls, and at most 500. Random actions reach about 22.
"""

from __future__ import annotations

import gymnasium

from paceline.train import CheckpointConfig, RunConfig, ScalingConfig
from paceline.train.rl import RLTrainer


def main() -> None:
    result = RLTrainer(
        "PPO",
        config={
            "env": "CartPole-v1",
            "lr": 3e-4,
            "train_batch_size": 2000,
            "minibatch_size": 128,
            "num_epochs": 6,
            "num_envs_per_env_runner": 8,
            "seed": 1,
        },
        scaling_config=ScalingConfig(num_workers=2),  # env runners
        run_config=RunConfig(
            name="cartpole",
            stop={"episode_reward_mean": 150, "training_iteration": 30},
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            verbose=0,
        ),
    ).fit()

    for row in result.metrics_dataframe.itertuples():
        bar = "#" * round(row.episode_reward_mean / 5)
        print(f"iteration {row.training_iteration:2}  {row.episode_reward_mean:5.1f}  {bar}")

    policy = result.checkpoint.get_policy()
    env = gymnasium.make("CartPole-v1")
    returns = []
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.compute_single_action(observation))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"mean return of the policy in 10 episodes: {sum(returns) / len(returns):.0f}")


if __name__ == "__main__":
    main()
