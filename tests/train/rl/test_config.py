"""Config dicts of today and of older versions become RLlib's AlgorithmConfig; what cannot is rejected with advice."""

from __future__ import annotations

from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("ray")

from paceline.air.errors import ConfigError  # noqa: E402
from paceline.train.rl.config import algorithm_class, algorithm_config  # noqa: E402
from paceline.train.rl.config_keys import ALGORITHMS, REJECTED, RENAMED  # noqa: E402
from tests.train.rl.config_cases import TRANSLATED  # noqa: E402

pytestmark = [
    pytest.mark.rl,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:google.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:gymnasium.*"),  # of environments that RLlib registers itself
]


@pytest.fixture(scope="module", autouse=True)
def own_imports() -> None:
    """Without TensorFlow, as in the library; the tests import parts of RLlib themselves."""
    from paceline.train.rl import rllib  # noqa: F401


def made(algorithm: str, given: Any) -> Any:
    return algorithm_config(algorithm_class(algorithm), given)


def problem(algorithm: str, given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        made(algorithm, given)
    return str(caught.value)


def first(agent_id: Any) -> str:
    return f"policy_{agent_id}"


def with_worker(agent_id: Any, episode: Any, worker: Any, **kwargs: Any) -> str:
    return f"policy_{agent_id}"


@pytest.mark.parametrize(("algorithm", "given", "expected"), TRANSLATED)
def test_keys_become_settings(algorithm: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    config = made(algorithm, given)
    assert {name: getattr(config, name) for name in expected} == expected


DROPPED_WITHOUT_A_WORD = {
    "framework": "torch",
    "horizon": None,
    "soft_horizon": False,
    "no_done_at_end": False,
    "clip_rewards": None,
    "preprocessor_pref": "deepmind",
    "render_env": False,
    "record_env": False,
    "remote_worker_envs": False,
    "eager_tracing": False,
    "tf_session_args": {"a": 1},
    "local_tf_session_args": {"a": 1},
    "simple_optimizer": True,
    "log_sys_usage": False,
    "compress_observations": True,
    "_disable_preprocessor_api": True,
    "_disable_execution_plan_api": True,
    "_use_trajectory_view_api": True,
    "sync_filters_on_rollout_workers_timeout_s": 3,
    "fake_sampler": False,
    "off_policy_estimation_methods": {},
    "shuffle_buffer_size": 0,
    "extra_python_environs_for_worker": {},
    "optimizer": {},
}


def test_keys_that_ask_for_nothing_change_nothing() -> None:
    with_them, without = made("PPO", DROPPED_WITHOUT_A_WORD), made("PPO", {})
    assert with_them.to_dict() == without.to_dict()


@pytest.mark.parametrize(
    ("algorithm", "given", "words"),
    [
        ("PPO", {"framework": "tf2"}, "'framework' is 'tf2'.*PyTorch only"),
        ("PPO", {"horizon": 100}, "'horizon'.*gymnasium.wrappers.TimeLimit"),
        ("PPO", {"clip_rewards": True}, "'clip_rewards'.*ClipReward"),
        ("PPO", {"num_gpus": 2}, "num_learners=2"),
        ("PPO", {"remote_worker_envs": True}, "gym_env_vectorize_mode='async'"),
        ("PPO", {"observation_filter": "Other"}, "'MeanStdFilter'"),
        ("PPO", {"exploration_config": {"type": "Curiosity"}}, "type Curiosity.*forward_exploration"),
        ("SAC", {"exploration_config": {"type": "EpsilonGreedy"}}, "type EpsilonGreedy, which SAC no longer has"),
        ("SAC", {"lr": 0.1}, "'lr' has no meaning for SAC.*actor_lr, critic_lr, alpha_lr"),
        ("DreamerV3", {"train_batch_size": 10}, "batch_size_B"),
        ("PPO", {"buffer_size": 10}, "'buffer_size' is for algorithms with a replay buffer, and PPO has none"),
        ("PPO", {"learning_starts": 10}, r"'learning_starts' \(today 'num_steps_.*is not a setting of PPO"),
        ("PPO", {"model": {"custom_model": "mine"}}, "'model.custom_model'.*RLModule"),
        ("PPO", {"model": {"use_attention": True}}, "'model.use_attention'.*use_lstm"),
        ("PPO", {"model": {"fcnet_hidens": [8]}}, "'model.fcnet_hidens'.*did you mean fcnet_hiddens"),
        ("PPO", {"model": 3}, "'model' is of type int: give a dict"),
        ("PPO", {"env_runner": 1}, "'env_runner' is not a setting of PPO: did you mean"),
        ("PPO", {"num_workers": 1, "num_env_runners": 2}, "both set num_env_runners, to 2 and 1: keep one"),
        ("PPO", {"batch_mode": "episodes"}, "'batch_mode' is 'episodes', which RLlib refuses"),
        ("PPO", {"lr_schedule": [[5, 0.1], [10, 0.2]]}, "'lr_schedule' is .*first timestep must be 0"),
        ("PPO", {"evaluation_config": {"horizon": 5}}, "evaluation_config: 'horizon'.*TimeLimit"),
        ("PPO", {"enable_rl_module_and_learner": False}, "new API stack only"),
        ("PPO", {"input": "dataset"}, "datasets="),
        ("PPO", {"log_level": "SILENT"}, "use one of DEBUG"),
        ("PPO", {"callbacks": {"on_episode_end": print}}, "dict of functions"),
        ("PPO", {"multiagent": {"policies": {"a": (object, None, None, {})}}}, "'multiagent.policies.a'.*RLModule"),
        ("PPO", {"multiagent": {"polices": {}}}, "did you mean policies"),
        ("PPO", {"multiagent": {"policy_mapping_fn": lambda: "a"}}, "def policy_mapping_fn"),
        ("SAC", {"lr_schedule": [[0, 0.1], [9, 0.2]]}, "'lr_schedule' has no meaning for SAC"),
        ("PPO", {"multiagent": {"policies": 3}}, "'multiagent.policies' is of type int: give the names"),
        ("PPO", {"multiagent": {"policies": {"a": 3}}}, "'multiagent.policies.a' is of type int: give a PolicySpec"),
        ("PPO", {"num_workers": 1.5}, "'num_workers' is 1.5: give a whole number of 0 or more"),
        ("PPO", {"train_batch_size": "auto"}, "'train_batch_size' is 'auto': give a whole number of 1 or more"),
        ("PPO", {"replay_buffer_config": {"capacity": 9}}, "'replay_buffer_config' is not a setting of PPO"),
        ("PPO", 3, "config is of type int"),
    ],
)
def test_what_cannot_be_translated_is_rejected_with_advice(algorithm: str, given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(algorithm, given)


def test_all_wrong_keys_are_in_one_error_with_the_cause() -> None:
    with pytest.raises(ConfigError) as caught:
        made("PPO", {"horizon": 5, "num_wrkers": 2, "batch_mode": "episodes"})
    text = str(caught.value)
    assert "3 settings are wrong" in text
    assert all(f"- '{key}'" in text for key in ("horizon", "num_wrkers", "batch_mode"))
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_dict_of_an_algorithm_config_is_that_config(algorithm: str) -> None:
    """Users of Ray 2.x wrote RLTrainer(config=PPOConfig().to_dict())."""
    if algorithm == "DreamerV3":
        pytest.importorskip("PIL")
    cls: Any = algorithm_class(algorithm)
    whole = algorithm_config(cls, {**cls.get_default_config().to_dict(), "gamma": 0.5})
    assert algorithm_config(cls, {"gamma": 0.5, "num_learners": whole.num_learners}).to_dict() == whole.to_dict()


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_every_new_name_exists_in_some_algorithm(old: str) -> None:
    from paceline.train.rl.config import _methods

    assert any(RENAMED[old] in _methods(algorithm_config(algorithm_class(name), None)) for name in ("PPO", "DQN"))
    assert old not in REJECTED


def test_the_dict_of_a_config_with_settings_of_all_kinds() -> None:
    from ray.rllib.algorithms.ppo import PPO, PPOConfig

    own = (
        PPOConfig()
        .environment("CartPole-v1", env_config={"a": 1})
        .env_runners(num_env_runners=1, env_to_module_connector=print)
        .training(train_batch_size_per_learner=77, lambda_=0.9)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda agent, episode, **kwargs: agent)
        .callbacks(on_train_result=print)
        .evaluation(evaluation_interval=2, evaluation_config={"explore": False})
    )
    assert algorithm_config(PPO, own.to_dict()).to_dict() == own.to_dict()


def test_the_model_dict_becomes_the_model_config() -> None:
    old = {
        "fcnet_hiddens": [32, 32],
        "fcnet_activation": "relu",
        "vf_share_layers": True,
        "use_lstm": True,
        "lstm_cell_size": 16,
        "post_fcnet_hiddens": [8],
        "fcnet_weights_initializer": "xavier_uniform_",
        "conv_filters": [[16, 4, 2]],
        "framestack": True,
        "custom_model": None,
        "_disable_action_flattening": False,
    }
    config = made("PPO", {"model": old})
    assert config.model_config == {
        "fcnet_hiddens": [32, 32],
        "fcnet_activation": "relu",
        "vf_share_layers": True,
        "use_lstm": True,
        "lstm_cell_size": 16,
        "head_fcnet_hiddens": [8],
        "fcnet_kernel_initializer": "xavier_uniform_",
        "conv_filters": [[16, 4, 2]],
    }
    both = {"fcnet_hiddens": [8]}
    assert made("SAC", {"Q_model": both, "policy_model": both}).model_config["fcnet_hiddens"] == [8]
    assert "one setting" in problem("SAC", {"Q_model": both, "policy_model": {"fcnet_hiddens": [9]}})
    assert made("DQN", {"hiddens": [64], "model": both}).model_config["head_fcnet_hiddens"] == [64]


@pytest.mark.parametrize("agents", [None, {"policies": ["a", "b"]}])
def test_the_mean_std_filter_becomes_a_connector(agents: Any) -> None:
    from ray.rllib.connectors.env_to_module import MeanStdFilter

    config = made("PPO", {"observation_filter": "MeanStdFilter", "multiagent": agents})
    connector = config._env_to_module_connector(None, None, None)
    assert isinstance(connector, MeanStdFilter)
    assert connector._multi_agent is (agents is not None)


@pytest.mark.parametrize("function", [first, with_worker, lambda agent, episode, **kwargs: f"policy_{agent}"])
def test_mapping_functions_of_all_times_are_called_as_today(function: Any) -> None:
    config = made("PPO", {"multiagent": {"policies": ["policy_1"], "policy_mapping_fn": function}})
    assert config.policy_mapping_fn(1, None) == "policy_1"


def test_settings_of_a_policy_become_overrides_for_its_module() -> None:
    box = gymnasium.spaces.Box(0, 1)
    policies = {"a": (None, box, None, {"lambda": 0.5, "lr": 0.1}), "b": (None, None, None, {})}
    config = made("PPO", {"multiagent": {"policies": policies}})
    assert config.policies["a"].observation_space == box
    assert config.algorithm_config_overrides_per_module == {"a": {"lambda_": 0.5, "lr": 0.1}}
    assert config.get_config_for_module("a").lambda_ == 0.5


def test_callbacks_that_need_the_old_worker_are_rejected() -> None:
    from ray.rllib.callbacks.callbacks import RLlibCallback

    class Today(RLlibCallback):  # type: ignore[misc]
        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None: ...

    class Old(RLlibCallback):  # type: ignore[misc]
        def on_episode_end(self, *, worker: Any, base_env: Any, episode: Any, **kwargs: Any) -> None: ...

    assert made("PPO", {"callbacks": Today}).callbacks_class is Today
    assert made("PPO", {"on_train_result": print}).callbacks_on_train_result is print
    assert "on_episode_end(), which requires 'worker'" in problem("PPO", {"callbacks": Old})
