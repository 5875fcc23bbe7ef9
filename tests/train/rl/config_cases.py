"""Config dicts and what they become, for test_config.py."""

from __future__ import annotations

from typing import Any

TRANSLATED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("PPO", {}, {"num_learners": 0, "framework_str": "torch", "enable_rl_module_and_learner": True}),
    ("IMPALA", {}, {"num_learners": 0}),
    ("IMPALA", {"num_learners": 1}, {"num_learners": 1}),
    (
        "PPO",
        {"num_learner_workers": 2, "num_gpus_per_learner_worker": 1},
        {"num_learners": 2, "num_gpus_per_learner": 1},
    ),
    ("PPO", {"env": "CartPole-v1", "env_config": {"a": 1}}, {"env": "CartPole-v1", "env_config": {"a": 1}}),
    # env runners
    ("PPO", {"num_workers": 3}, {"num_env_runners": 3}),
    ("PPO", {"num_rollout_workers": 3, "num_envs_per_worker": 4}, {"num_env_runners": 3, "num_envs_per_env_runner": 4}),
    (
        "PPO",
        {"num_cpus_per_worker": 2, "num_gpus_per_worker": 0.5},
        {"num_cpus_per_env_runner": 2, "num_gpus_per_env_runner": 0.5},
    ),
    (
        "PPO",
        {"num_cpus_for_driver": 2, "custom_resources_per_worker": {"a": 1}},
        {"num_cpus_for_main_process": 2, "custom_resources_per_env_runner": {"a": 1}},
    ),
    ("PPO", {"num_gpus": 0.5}, {"num_gpus_per_learner": 0.5}),
    (
        "PPO",
        {"rollout_fragment_length": 50, "batch_mode": "complete_episodes"},
        {"rollout_fragment_length": 50, "batch_mode": "complete_episodes"},
    ),
    ("PPO", {"create_env_on_driver": True, "explore": False}, {"create_env_on_local_worker": True, "explore": False}),
    ("PPO", {"clip_actions": True, "normalize_actions": False}, {"clip_actions": True, "normalize_actions": False}),
    (
        "PPO",
        {"ignore_worker_failures": True, "recreate_failed_workers": False},
        {"ignore_env_runner_failures": True, "restart_failed_env_runners": False},
    ),
    # training
    ("PPO", {"train_batch_size": 1000}, {"train_batch_size_per_learner": 1000}),
    ("SAC", {"train_batch_size": 64}, {"train_batch_size_per_learner": 64}),
    (
        "PPO",
        {"train_batch_size": 1000, "num_learners": 2},
        {"train_batch_size_per_learner": 500, "total_train_batch_size": 1000},
    ),
    (
        "PPO",
        {"sgd_minibatch_size": 32, "num_sgd_iter": 3, "lambda": 0.9},
        {"minibatch_size": 32, "num_epochs": 3, "lambda_": 0.9},
    ),
    (
        "MARWIL",
        {"lambda": 0.9, "beta": 0.5, "vf_coeff": 0.3, "bc_logstd_coeff": 0.1},
        {"lambda_": 0.9, "beta": 0.5, "vf_coeff": 0.3, "bc_logstd_coeff": 0.1},
    ),
    ("PPO", {"lr": 0.1, "lr_schedule": [[0, 0.2], [100, 0.1]]}, {"lr": [[0, 0.2], [100, 0.1]], "lr_schedule": None}),
    ("PPO", {"lr": 0.1, "lr_schedule": None}, {"lr": 0.1}),
    (
        "PPO",
        {"entropy_coeff_schedule": [[0, 0.1], [100, 0.0]]},
        {"entropy_coeff": [[0, 0.1], [100, 0.0]], "entropy_coeff_schedule": None},
    ),
    (
        "PPO",
        {"gamma": 0.9, "kl_coeff": 0.1, "vf_clip_param": 5.0, "grad_clip": 1.0},
        {"gamma": 0.9, "kl_coeff": 0.1, "vf_clip_param": 5.0, "grad_clip": 1.0},
    ),
    (
        "SAC",
        {"optimization": {"actor_learning_rate": 0.1, "critic_learning_rate": 0.2, "entropy_learning_rate": 0.3}},
        {"actor_lr": 0.1, "critic_lr": 0.2, "alpha_lr": 0.3, "lr": None},
    ),
    (
        "SAC",
        {"twin_q": False, "tau": 0.1, "n_step": 3, "target_network_update_freq": 5},
        {"twin_q": False, "tau": 0.1, "n_step": 3, "target_network_update_freq": 5},
    ),
    ("CQL", {}, {"lr": None}),
    (
        "DQN",
        {"dueling": False, "double_q": False, "num_atoms": 5, "n_step": 2},
        {"dueling": False, "double_q": False, "num_atoms": 5, "n_step": 2},
    ),
    ("DQN", {"learning_starts": 50}, {"num_steps_sampled_before_learning_starts": 50}),
    # exploration and filters
    (
        "DQN",
        {
            "exploration_config": {
                "type": "EpsilonGreedy",
                "initial_epsilon": 0.9,
                "final_epsilon": 0.1,
                "epsilon_timesteps": 500,
            }
        },
        {"epsilon": [(0, 0.9), (500, 0.1)]},
    ),
    ("DQN", {"exploration_config": {"epsilon_timesteps": 500}}, {"epsilon": [(0, 1.0), (500, 0.02)]}),
    (
        "DQN",
        {"exploration_config": {"type": "EpsilonGreedy", "warmup_timesteps": 100}},
        {"epsilon": [(0, 1.0), (100, 1.0), (10_100, 0.05)]},
    ),
    ("PPO", {"exploration_config": {"type": "StochasticSampling"}}, {"exploration_config": {}}),
    ("PPO", {"observation_filter": "NoFilter"}, {"_env_to_module_connector": None}),
    # the replay buffer
    (
        "DQN",
        {"buffer_size": 500, "prioritized_replay": True, "prioritized_replay_alpha": 0.5},
        {
            "replay_buffer_config": {
                "type": "PrioritizedEpisodeReplayBuffer",
                "capacity": 500,
                "alpha": 0.5,
                "beta": 0.4,
            }
        },
    ),
    (
        "DQN",
        {"prioritized_replay": False},
        {"replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 50_000}},
    ),
    (
        "DQN",
        {
            "replay_buffer_config": {
                "type": "MultiAgentPrioritizedReplayBuffer",
                "capacity": 9,
                "prioritized_replay_beta": 0.3,
                "prioritized_replay_eps": 1e-6,
                "learning_starts": 7,
                "replay_sequence_length": 1,
            }
        },
        {
            "replay_buffer_config": {
                "type": "PrioritizedEpisodeReplayBuffer",
                "capacity": 9,
                "alpha": 0.6,
                "beta": 0.3,
            },
            "num_steps_sampled_before_learning_starts": 7,
        },
    ),
    # evaluation and reports
    (
        "PPO",
        {"evaluation_interval": 2, "evaluation_num_workers": 1, "evaluation_num_episodes": 4},
        {
            "evaluation_interval": 2,
            "evaluation_num_env_runners": 1,
            "evaluation_duration": 4,
            "evaluation_duration_unit": "episodes",
        },
    ),
    (
        "PPO",
        {"evaluation_duration": 100, "evaluation_duration_unit": "timesteps", "evaluation_parallel_to_training": True},
        {"evaluation_duration": 100, "evaluation_duration_unit": "timesteps", "evaluation_parallel_to_training": True},
    ),
    (
        "PPO",
        {"evaluation_config": {"explore": False, "num_envs_per_worker": 2, "in_evaluation": True}},
        {"evaluation_config": {"explore": False, "num_envs_per_env_runner": 2}},
    ),
    ("DQN", {"evaluation_config": {"explore": True}}, {"evaluation_config": {"explore": True}}),
    (
        "PPO",
        {"timesteps_per_iteration": 7, "min_iter_time_s": 1},
        {"min_sample_timesteps_per_iteration": 7, "min_time_s_per_iteration": 1},
    ),
    (
        "PPO",
        {"min_train_timesteps_per_reporting": 7, "min_sample_timesteps_per_reporting": 8},
        {"min_train_timesteps_per_iteration": 7, "min_sample_timesteps_per_iteration": 8},
    ),
    (
        "PPO",
        {"metrics_smoothing_episodes": 5, "collect_metrics_timeout": 9},
        {"metrics_num_episodes_for_smoothing": 5, "metrics_episode_collection_timeout_s": 9},
    ),
    ("PPO", {"seed": 3, "log_level": "ERROR"}, {"seed": 3, "log_level": "ERROR"}),
    # agents
    (
        "PPO",
        {"multiagent": {"policies": {"a", "b"}, "policies_to_train": ["a"], "policy_map_capacity": 5}},
        {"is_multi_agent": True, "policies_to_train": ["a"]},
    ),
    (
        "DQN",
        {
            "multiagent": {"policies": ["a", "b"]},
            "replay_buffer_config": {"type": "MultiAgentReplayBuffer", "capacity": 9},
        },
        {"replay_buffer_config": {"type": "MultiAgentEpisodeReplayBuffer", "capacity": 9}},
    ),
    # offline data
    (
        "BC",
        {"input": ["/data/a.parquet"], "postprocess_inputs": True},
        {"input_": ["/data/a.parquet"], "postprocess_inputs": True},
    ),
    (
        "PPO",
        {"input": "sampler", "output": "/data", "batch_mode": "complete_episodes"},
        {"input_": "sampler", "output": "/data"},
    ),
]
"""The algorithm, what a user writes, and attributes of the AlgorithmConfig that it becomes."""
