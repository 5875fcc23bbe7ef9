"""Keys of RLlib's config dicts, from Ray 1.x to Ray 2.6, and what became of them in RLlib's new API stack.

A key of an older dict is in one of these tables, or `config_values.py` has a function for it:

- RENAMED: the same setting has another name today.
- DROPPED: ignored whatever its value is, because it says nothing about the training that RLlib runs today: settings of
  TensorFlow, of memory and of logs that no longer exist, and switches of APIs that are always on or always gone.
- REJECTED: the new API stack has no such setting. The key is ignored if its value is empty, zero, False or RLlib's
  default, since nothing was asked for; otherwise the user reads the advice.

Every other key must be an argument of an AlgorithmConfig method.
"""

from __future__ import annotations

METHODS = (
    "environment",
    "env_runners",
    "learners",
    "training",
    "evaluation",
    "callbacks",
    "offline_data",
    "multi_agent",
    "rl_module",
    "reporting",
    "checkpointing",
    "debugging",
    "fault_tolerance",
    "resources",
    "framework",
    "experimental",
)
"""Methods of AlgorithmConfig whose arguments a dict may name; where two have the same argument, the first is called."""

RENAMED = {
    "num_workers": "num_env_runners",
    "num_rollout_workers": "num_env_runners",
    "num_envs_per_worker": "num_envs_per_env_runner",
    "num_cpus_per_worker": "num_cpus_per_env_runner",
    "num_gpus_per_worker": "num_gpus_per_env_runner",
    "custom_resources_per_worker": "custom_resources_per_env_runner",
    "validate_workers_after_construction": "validate_env_runners_after_construction",
    "max_requests_in_flight_per_sampler_worker": "max_requests_in_flight_per_env_runner",
    "create_env_on_driver": "create_env_on_local_worker",
    "num_cpus_for_driver": "num_cpus_for_main_process",
    "num_cpus_for_local_worker": "num_cpus_for_main_process",
    "num_learner_workers": "num_learners",
    "num_cpus_per_learner_worker": "num_cpus_per_learner",
    "num_gpus_per_learner_worker": "num_gpus_per_learner",
    "num_aggregation_workers": "num_aggregator_actors_per_learner",
    "max_requests_in_flight_per_aggregator_worker": "max_requests_in_flight_per_aggregator_actor",
    "sgd_minibatch_size": "minibatch_size",
    "num_sgd_iter": "num_epochs",
    "shuffle_sequences": "shuffle_batch_per_epoch",
    "lambda": "lambda_",
    "entropy_coeff_schedule": "entropy_coeff",
    "learning_starts": "num_steps_sampled_before_learning_starts",
    "target_update_frequency": "target_network_update_freq",
    "evaluation_num_workers": "evaluation_num_env_runners",
    "custom_eval_function": "custom_evaluation_function",
    "ignore_worker_failures": "ignore_env_runner_failures",
    "recreate_failed_workers": "restart_failed_env_runners",
    "recreate_failed_env_runners": "restart_failed_env_runners",
    "max_num_worker_restarts": "max_num_env_runner_restarts",
    "delay_between_worker_restarts_s": "delay_between_env_runner_restarts_s",
    "num_consecutive_worker_failures_tolerance": "num_consecutive_env_runner_failures_tolerance",
    "worker_health_probe_timeout_s": "env_runner_health_probe_timeout_s",
    "worker_restore_timeout_s": "env_runner_restore_timeout_s",
    "timesteps_per_iteration": "min_sample_timesteps_per_iteration",
    "min_iter_time_s": "min_time_s_per_iteration",
    "min_time_s_per_reporting": "min_time_s_per_iteration",
    "min_train_timesteps_per_reporting": "min_train_timesteps_per_iteration",
    "min_sample_timesteps_per_reporting": "min_sample_timesteps_per_iteration",
    "metrics_smoothing_episodes": "metrics_num_episodes_for_smoothing",
    "collect_metrics_timeout": "metrics_episode_collection_timeout_s",
    "model_config_dict": "model_config",
}

SCHEDULES = {"lr_schedule": "lr", "entropy_coeff_schedule": "entropy_coeff"}
"""Where a dict has both, RLlib always took the schedule."""

WHOLE_NUMBERS = {
    **dict.fromkeys(
        ("num_env_runners", "num_learners", "evaluation_num_env_runners", "seed", "evaluation_interval"), 0
    ),
    **dict.fromkeys(("num_envs_per_env_runner", "train_batch_size_per_learner", "minibatch_size", "num_epochs"), 1),
}
"""Arguments that RLlib takes unchecked, and the least value that works."""

OTHER_LIBRARIES = {
    "learning_rate": "lr",
    "batch_size": "train_batch_size",
    "discount": "gamma",
    "n_epochs": "num_epochs",
    "n_steps": "rollout_fragment_length",
    "ent_coef": "entropy_coeff",
    "gae_lambda": "lambda_",
}
"""What the setting is called elsewhere; no spelling of RLlib's name comes near to it."""

DROPPED = frozenset(
    {
        *("eager_tracing", "eager_max_retraces", "tf_session_args", "local_tf_session_args"),
        *("enable_tf1_exec_eagerly", "_tf_policy_handles_more_than_one_loss", "simple_optimizer"),
        *("log_sys_usage", "compress_observations", "sampler_perf_stats_ema_coef", "placement_strategy", "_fake_gpus"),
        *("synchronize_filters", "sync_filters_on_rollout_workers_timeout_s", "always_attach_evaluation_results"),
        *("policy_map_capacity", "policy_map_cache", "policy_states_are_swappable", "auto_wrap_old_gym_envs"),
        *("enable_connectors", "_enable_rl_module_api", "_enable_learner_api", "_enable_new_api_stack"),
        *("_disable_execution_plan_api", "_disable_initialize_loss_from_dummy_batch", "_use_trajectory_view_api"),
        *("_disable_preprocessor_api", "_disable_action_flattening", "worker_side_prioritization", "sigma0"),
        *("use_state_preprocessor", "ope_split_batch_by_episode", "_is_frozen"),
    }
)

_TIME_LIMIT = "limit the episodes in the environment, with gymnasium.wrappers.TimeLimit(env, max_episode_steps=...)"
_RECORD = "record in the environment, with gymnasium.wrappers.RecordVideo(env, ...)"
_ENVIRON = "set variables before fit(): the processes of the run inherit them"
_OFFLINE_EVALUATION = "use offline_evaluation_interval and offline_evaluation_type ('eval_loss', 'is' or 'pdis')"
_ONE_OPTIMIZER = "RLlib trains with Adam; for another optimizer, give learner_class="
_DATASETS = "give the trainer datasets={'train': a paceline.data dataset}"

REJECTED = {
    "horizon": _TIME_LIMIT,
    "soft_horizon": _TIME_LIMIT,
    "no_done_at_end": f"episodes that end by a limit must say truncated, not terminated: {_TIME_LIMIT}",
    "clip_rewards": "clip them in the environment, with gymnasium.wrappers.ClipReward(env, -1, 1)",
    "preprocessor_pref": "RLlib changes no observations by itself; wrap the environment, or give "
    "env_to_module_connector= with FlattenObservations of ray.rllib.connectors.env_to_module",
    "env_task_fn": "use callbacks that set the task in the environment (on_train_result)",
    "render_env": _RECORD,
    "record_env": _RECORD,
    "monitor": _RECORD,
    "remote_worker_envs": "use gym_env_vectorize_mode='async' for environments in processes of their own",
    "remote_env_batch_wait_ms": "use gym_env_vectorize_mode='async' for environments in processes of their own",
    "sample_async": "use the algorithms APPO or IMPALA, which sample while they learn",
    "sample_collector": "use callbacks or an env_to_module_connector",
    "worker_cls": "use env_runner_cls=",
    "fake_sampler": "leave it out",
    "in_evaluation": "RLlib sets it itself; settings for evaluation go into evaluation_config",
    "enable_async_evaluation": "use evaluation_parallel_to_training=True",
    "custom_async_evaluation_function": "use custom_evaluation_function=",
    "optimizer": _ONE_OPTIMIZER,
    "opt_type": _ONE_OPTIMIZER,
    "decay": _ONE_OPTIMIZER,
    "momentum": _ONE_OPTIMIZER,
    "_separate_vf_optimizer": _ONE_OPTIMIZER,
    "_lr_vf": _ONE_OPTIMIZER,
    "num_multi_gpu_tower_stacks": "use num_learners and num_gpus_per_learner for several GPUs",
    "minibatch_buffer_size": "use circular_buffer_num_batches (APPO)",
    "replay_proportion": "use circular_buffer_iterations_per_batch (APPO)",
    "replay_buffer_num_slots": "use circular_buffer_num_batches (APPO)",
    "vtrace_drop_last_ts": "leave it out",
    "noisy": "explore by the epsilon schedule: epsilon=[(0, 1.0), (10000, 0.05)]",
    "before_learn_on_batch": "use learner_connector= to change batches before the update",
    "_deterministic_loss": "leave it out",
    "_use_beta_distribution": "write an RLModule with that distribution and give rl_module_spec=",
    "observation_fn": "change the observations in the environment, or with env_to_module_connector=",
    "replay_mode": "leave it out: modules learn from their own samples ('independent')",
    "off_policy_estimation_methods": _OFFLINE_EVALUATION,
    "input_evaluation": _OFFLINE_EVALUATION,
    "input_config": _DATASETS,
    "shuffle_buffer_size": "leave it out: rows of datasets={'train': ...} are shuffled in windows of 100,000",
    "extra_python_environs_for_driver": _ENVIRON,
    "extra_python_environs_for_worker": _ENVIRON,
    "final_prioritized_replay_beta": "beta is constant: set replay_buffer_config={'beta': ...}",
    "prioritized_replay_beta_annealing_timesteps": "beta is constant: set replay_buffer_config={'beta': ...}",
    "replay_batch_size": "use train_batch_size",
    "export_native_model_files": "save the module of the checkpoint with torch.save",
    "checkpoint_trainable_policies_only": "leave it out: checkpoints hold every module",
}

MODEL_RENAMED = {
    **{f"{part}_weights_initializer": f"{part}_kernel_initializer" for part in ("fcnet", "lstm")},
    **{f"{part}_weights_initializer_config": f"{part}_kernel_initializer_kwargs" for part in ("fcnet", "lstm")},
    **{f"{part}_bias_initializer_config": f"{part}_bias_initializer_kwargs" for part in ("fcnet", "lstm", "conv")},
    "conv_kernel_initializer_config": "conv_kernel_initializer_kwargs",
    "post_fcnet_hiddens": "head_fcnet_hiddens",
    "post_fcnet_activation": "head_fcnet_activation",
    "post_fcnet_weights_initializer": "head_fcnet_kernel_initializer",
    "post_fcnet_weights_initializer_config": "head_fcnet_kernel_initializer_kwargs",
    "post_fcnet_bias_initializer": "head_fcnet_bias_initializer",
    "post_fcnet_bias_initializer_config": "head_fcnet_bias_initializer_kwargs",
}
"""Keys of `model` (and of SAC's Q_model and policy_model) that have another name in RLlib's DefaultModelConfig."""

_OWN_MODULE = "write an RLModule and give rl_module_spec=RLModuleSpec(module_class=...)"
_ATARI = "wrap the environment, with wrap_atari_for_new_api_stack of ray.rllib.env.wrappers.atari_wrappers"
_PREVIOUS = "give env_to_module_connector= with PrevActionsPrevRewards of ray.rllib.connectors.env_to_module"

MODEL_REJECTED = {
    "custom_model": _OWN_MODULE,
    "custom_model_config": _OWN_MODULE,
    "custom_action_dist": _OWN_MODULE,
    "no_final_linear": _OWN_MODULE,
    "use_attention": f"RLlib's modules have an LSTM (use_lstm) but no attention; {_OWN_MODULE}",
    "lstm_use_prev_action": _PREVIOUS,
    "lstm_use_prev_reward": _PREVIOUS,
    "lstm_use_prev_action_reward": _PREVIOUS,
    "custom_preprocessor": "change the observations in the environment, or with env_to_module_connector=",
    "framestack": _ATARI,
    "dim": _ATARI,
    "grayscale": _ATARI,
    "zero_mean": _ATARI,
    "encoder_latent_dim": "use fcnet_hiddens",
}
"""Other keys of the old `model` dict are ignored at RLlib's old default and rejected otherwise."""

REMOVED_ALGORITHMS = {
    **dict.fromkeys(("A2C", "A3C", "PG", "DDPPO", "ES", "ARS", "MAML", "MBMPO", "AlphaZero", "LeelaChessZero"), "PPO"),
    **dict.fromkeys(("AlphaStar", "MADDPG", "Bandit", "BanditLinUCB", "BanditLinTS"), "PPO"),
    **dict.fromkeys(("DDPG", "TD3", "ApexDDPG", "RNNSAC"), "SAC"),
    **dict.fromkeys(("ApexDQN", "APEX", "SimpleQ", "Rainbow", "R2D2", "QMIX", "SlateQ"), "DQN"),
    **dict.fromkeys(("DT", "CRR"), "MARWIL"),
    **dict.fromkeys(("Dreamer",), "DreamerV3"),
}
"""Algorithms that RLlib no longer has, and the nearest one that it has."""

ALGORITHMS = ("APPO", "BC", "CQL", "DQN", "DreamerV3", "IMPALA", "IQL", "MARWIL", "PPO", "SAC", "TQC")
