"""Keys of RLlib's older config dicts whose values have another form in the new API stack.

Each function gets the key and its value, and either sets arguments of AlgorithmConfig's methods or reports a problem.
Import `paceline.train.rl.rllib` before calling them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.secrets import masked
from paceline.train.rl.config_keys import MODEL_REJECTED, MODEL_RENAMED


@dataclass
class Translation:
    """One config dict on its way to the arguments of AlgorithmConfig's methods."""

    config: Any
    """The AlgorithmConfig that the arguments are for, as it was before them."""
    overrides: bool = False
    """True for a dict that changes `config` for evaluation, or for one module."""
    arguments: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """By the name of the argument: the key in the user's dict, and the value."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with which key, each as a sentence without its end."""

    def set(self, argument: str, key: str, value: Any) -> None:
        """Set an argument. Dicts that come from several keys are merged."""
        if argument in self.arguments:
            other, earlier = self.arguments[argument]
            if isinstance(earlier, dict) and isinstance(value, dict):
                value = {**earlier, **value}
            elif other != key and not same(earlier, value):
                self.reject(key, f"and {other!r} both set {argument}, to {shown(value)} and {shown(earlier)}: keep one")
        self.arguments[argument] = (key, value)

    def reject(self, key: str, problem: str) -> None:
        self.problems.append(f"{key!r} {problem}")

    def mapping(self, key: str, value: Any) -> Mapping[str, Any]:
        if value is None or isinstance(value, Mapping):
            return value or {}
        self.reject(key, f"is of type {type(value).__name__}: give a dict")
        return {}

    def has(self, setting: str) -> bool:
        return hasattr(self.config, setting)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal; arrays and such count as different."""
    try:
        return one is other or bool(one == other)
    except Exception:
        return False


def shown(value: Any) -> str:
    text = repr(masked(value))
    return text if len(text) <= 100 else f"{text[:100]}..."


def framework(made: Translation, key: str, value: Any) -> None:
    if value not in ("torch", None):
        made.reject(key, f"is {value!r}, but RLlib's new API stack is PyTorch only: use 'torch' or leave it out")


def num_gpus(made: Translation, key: str, value: Any) -> None:
    if isinstance(value, int | float) and value > 1:
        made.reject(key, f"is {value!r}: use num_learners={value:g} and num_gpus_per_learner=1 for several GPUs")
    elif value:
        made.set("num_gpus_per_learner", key, value)


def train_batch_size(made: Translation, key: str, value: Any) -> None:
    """The size of the whole batch, which today is set per learner. (SAC ignores the old setting.)"""
    if made.config.train_batch_size is None:
        made.reject(key, f"has no meaning for {made.config.algo_class.__name__}: use batch_size_B and batch_length_T")
        return
    _, learners = made.arguments.get("num_learners", (key, made.config.num_learners))
    whole = not isinstance(value, bool) and isinstance(value, int)
    made.set("train_batch_size_per_learner", key, value // (learners or 1) if whole else value)


def lr(made: Translation, key: str, value: Any) -> None:
    if value is not None and made.has("actor_lr"):
        others = [
            name for name in ("actor_lr", "critic_lr", "alpha_lr", "value_lr", "world_model_lr") if made.has(name)
        ]
        name = made.config.algo_class.__name__
        made.reject(key, f"has no meaning for {name}, which has a learning rate per network: use {', '.join(others)}")
    else:
        made.set("lr", key, value)


def optimization(made: Translation, key: str, value: Any) -> None:
    today = {f"{old}_learning_rate": new for old, new in (("actor", "actor_lr"), ("critic", "critic_lr"))}
    today["entropy_learning_rate"] = "alpha_lr"
    for name, rate in made.mapping(key, value).items():
        if name in today and made.has("actor_lr"):
            made.set(today[name], key, rate)
        else:
            made.reject(key, f"has the entry {name!r}: use the algorithm's own learning rates")


def model(made: Translation, key: str, value: Any) -> None:
    """The model dict of the old API stack becomes the model_config of RLlib's default RLModules."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.models import MODEL_DEFAULTS

    known = list(DefaultModelConfig.__dataclass_fields__)
    taken: dict[str, Any] = {}
    for old, setting in made.mapping(key, value).items():
        name = MODEL_RENAMED.get(old, old)
        if old in MODEL_REJECTED or (old in MODEL_DEFAULTS and name not in known):
            if setting and not same(setting, MODEL_DEFAULTS.get(old)):
                advice = MODEL_REJECTED.get(old, MODEL_REJECTED["custom_model"])
                made.reject(f"{key}.{old}", f"has no counterpart in RLlib's new API stack: {advice}")
        elif name in known:
            taken[name] = setting
        elif not old.startswith("_"):
            made.reject(f"{key}.{old}", f"is not a setting of RLlib's modules{near_miss(old, known).rstrip('.')}")
    if taken:
        made.set("model_config", key, taken)


def model_part(made: Translation, key: str, value: Any) -> None:
    """SAC's networks for the policy and for Q values, which have one common setting today."""
    earlier = made.arguments.get("model_config")
    model(made, key, value)
    if earlier and earlier[0] != key and not same(earlier[1], made.arguments["model_config"][1]):
        made.reject(key, f"differs from {earlier[0]!r}: today both networks have one setting, 'model_config'")


def hiddens(made: Translation, key: str, value: Any) -> None:
    """DQN's layers behind the encoder, which RLlib's catalog calls heads."""
    if not same(value, getattr(made.config, "hiddens", None)):
        made.set("model_config", key, {"head_fcnet_hiddens": list(value or [])})


def vf_share_layers(made: Translation, key: str, value: Any) -> None:
    made.set("model_config", key, {"vf_share_layers": value})


def exploration_config(made: Translation, key: str, value: Any) -> None:
    given = dict(made.mapping(key, value))
    kind = given.pop("type", "EpsilonGreedy" if given else "StochasticSampling")
    kind = kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]
    if kind == "StochasticSampling":
        return
    if kind != "EpsilonGreedy" or not made.has("num_atoms"):
        name = made.config.algo_class.__name__
        made.reject(
            key,
            f"has the type {kind}, which {name} no longer has: write an RLModule with its own forward_exploration()",
        )
        return
    start, end = given.pop("initial_epsilon", 1.0), given.pop("final_epsilon", 0.05 if "type" in value else 0.02)
    warmup, steps = given.pop("warmup_timesteps", 0), given.pop("epsilon_timesteps", 10_000)
    for name in given:
        made.reject(f"{key}.{name}", "is not supported: give the schedule itself, epsilon=[(0, 1.0), (10000, 0.05)]")
    made.set("epsilon", key, [(0, start), *([(warmup, start)] if warmup else []), (warmup + steps, end)])


def observation_filter(made: Translation, key: str, value: Any) -> None:
    if value in ("MeanStdFilter", "ConcurrentMeanStdFilter"):
        made.set("env_to_module_connector", key, mean_std_filter)
    elif value not in ("NoFilter", None):
        made.reject(key, f"is {value!r}: use 'MeanStdFilter', or give env_to_module_connector=")


def mean_std_filter(*_env_and_spaces: Any, multi_agent: bool = False, **_device: Any) -> Any:
    """The connector for observation_filter="MeanStdFilter"; env runners call it."""
    from ray.rllib.connectors.env_to_module import MeanStdFilter

    return MeanStdFilter(multi_agent=multi_agent)


def evaluation_num_episodes(made: Translation, key: str, value: Any) -> None:
    made.set("evaluation_duration", key, value)
    made.set("evaluation_duration_unit", key, "episodes")


REPLAY_TYPES = {
    "ReplayBuffer": "EpisodeReplayBuffer",
    "MultiAgentReplayBuffer": "EpisodeReplayBuffer",
    "PrioritizedReplayBuffer": "PrioritizedEpisodeReplayBuffer",
    "MultiAgentPrioritizedReplayBuffer": "PrioritizedEpisodeReplayBuffer",
}
REPLAY_HARMLESS: dict[str, tuple[Any, ...] | None] = {
    "_enable_replay_buffer_api": None,
    "prioritized_replay_eps": None,
    "learning_starts": (None,),
    "replay_burn_in": (0, None),
    "replay_mode": ("independent", None),
    "replay_sequence_length": (1, -1, None),
    "replay_zero_init_states": (True, None),
    "storage_unit": ("timesteps", None),
    "worker_side_prioritization": (False, None),
}
"""Entries of replay_buffer_config with the values that are ignored; None means any."""


def replay_buffer_config(made: Translation, key: str, value: Any) -> None:
    given, today = dict(made.mapping(key, value)), dict[str, Any]()
    if given.get("learning_starts") is not None:
        made.set("num_steps_sampled_before_learning_starts", key, given.pop("learning_starts"))
    kind = given.pop("type", None)
    name = kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]
    if "prioritized_replay" in given and (kind is None or name in REPLAY_TYPES):
        name = "PrioritizedReplayBuffer" if given.pop("prioritized_replay") else "ReplayBuffer"
    if name in REPLAY_TYPES or kind is not None:
        today["type"] = REPLAY_TYPES.get(name, kind)
    for old, setting in given.items():
        if old in REPLAY_HARMLESS:
            harmless = REPLAY_HARMLESS[old]
            if harmless is not None and setting not in harmless:
                made.reject(f"{key}.{old}", f"is {setting!r}, which RLlib's episode buffers do not have: leave it out")
        else:
            today[{"buffer_size": "capacity"}.get(old, old.removeprefix("prioritized_replay_"))] = setting
    if today:
        made.set("replay_buffer_config", key, today)


def replay_entry(made: Translation, key: str, value: Any) -> None:
    """Ray 1.x had the settings of the replay buffer among the others."""
    if not made.has("replay_buffer_config"):
        made.reject(key, f"is for algorithms with a replay buffer, and {made.config.algo_class.__name__} has none")
    elif value is not None:
        replay_buffer_config(made, key, {key: value})


def log_level(made: Translation, key: str, value: Any) -> None:
    levels = ("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL")
    if value is not None and value not in levels:
        made.reject(key, f"is {value!r}: use one of {', '.join(levels)}")
    else:
        made.set("log_level", key, value)


def api_stack(made: Translation, key: str, value: Any) -> None:
    if value is not True:
        made.reject(key, f"is {value!r}, but paceline runs RLlib's new API stack only: leave it out")


def input_(made: Translation, key: str, value: Any) -> None:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list | tuple) or any(each == "dataset" or str(each).startswith("d4rl") for each in paths):
        made.reject(key, "must be paths of Parquet files: give the trainer datasets={'train': a paceline.data dataset}")
    elif value != "sampler":
        made.set("input_", key, value)


def output(made: Translation, key: str, value: Any) -> None:
    if value == "logdir" or (value is not None and not isinstance(value, str)):
        made.reject(key, f"is {value!r}: give the path of a folder for the episodes")
    else:
        made.set("output", key, value)
