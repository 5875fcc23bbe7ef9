"""Config dicts of RLlib, of today and of older versions, become calls of AlgorithmConfig's methods."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paceline.air.checks import near_miss, whole_number
from paceline.air.errors import ConfigError
from paceline.train.rl import config_envs, config_values
from paceline.train.rl.config_keys import (
    DROPPED,
    METHODS,
    OTHER_LIBRARIES,
    REJECTED,
    RENAMED,
    SCHEDULES,
    WHOLE_NUMBERS,
)
from paceline.train.rl.config_values import Translation, same, shown

VALUES: dict[str, Callable[[Translation, str, Any], None]] = {
    "framework": config_values.framework,
    "framework_str": config_values.framework,
    "num_gpus": config_values.num_gpus,
    "train_batch_size": config_values.train_batch_size,
    "lr": config_values.lr,
    "lr_schedule": config_values.lr,
    "optimization": config_values.optimization,
    "optimization_config": config_values.optimization,
    "model": config_values.model,
    **dict.fromkeys(("Q_model", "q_model_config", "policy_model", "policy_model_config"), config_values.model_part),
    "hiddens": config_values.hiddens,
    "vf_share_layers": config_values.vf_share_layers,
    "exploration_config": config_values.exploration_config,
    "observation_filter": config_values.observation_filter,
    "evaluation_num_episodes": config_values.evaluation_num_episodes,
    "replay_buffer_config": config_values.replay_buffer_config,
    **dict.fromkeys(
        ("buffer_size", "prioritized_replay", "replay_sequence_length", "replay_burn_in", "replay_zero_init_states"),
        config_values.replay_entry,
    ),
    **{f"prioritized_replay_{name}": config_values.replay_entry for name in ("alpha", "beta", "eps")},
    "log_level": config_values.log_level,
    "enable_rl_module_and_learner": config_values.api_stack,
    "enable_env_runner_and_connector_v2": config_values.api_stack,
    "input": config_values.input_,
    "input_": config_values.input_,
    "output": config_values.output,
    "callbacks": config_envs.callbacks,
    "callbacks_class": config_envs.callbacks,
    "multiagent": config_envs.multiagent,
    "policies": config_envs.policies,
    "policy_mapping_fn": config_envs.policy_mapping_fn,
}
"""Functions for keys whose values change their form."""


def fill(config: Any, given: Mapping[str, Any], *, explicit: bool = False) -> None:
    """Set what the dict says; all that is wrong with it goes into one ConfigError.

    `explicit`: the config may differ from the defaults, so a default in the dict is a change like any other.
    """
    made = _translated(config, given, overrides=explicit)
    cause = _apply(config, made)
    if made.problems:
        lines = "".join(f"\n- {problem}" for problem in made.problems)
        text = (
            f" {made.problems[0]}." if len(made.problems) == 1 else f" {len(made.problems)} settings are wrong:{lines}"
        )
        raise ConfigError(f"config:{text}".replace("?.", "?")) from cause


def _translated(config: Any, given: Mapping[str, Any], overrides: bool) -> Translation:
    made, methods = Translation(config, overrides), _methods(config)
    replaced = {SCHEDULES[key] for key in SCHEDULES if given.get(key) is not None}
    learners_first = sorted(given, key=lambda key: RENAMED.get(key, key) != "num_learners")
    for key in learners_first:
        value = given[key]
        name = RENAMED.get(key, key if key in methods else _of_attribute(str(key)))
        is_default = same(value, vars(config).get(key, made))
        if key in DROPPED or key in replaced or (key in SCHEDULES and value is None):
            continue
        if key in REJECTED:
            if value and not is_default:
                made.reject(key, f"has no counterpart in RLlib's new API stack: {REJECTED[key]}")
        elif key in VALUES:
            if overrides or not is_default:
                VALUES[key](made, key, value)
        elif name in methods or (name == "lambda_" and hasattr(config, name)):
            if not is_default or name == key:  # RLlib keeps some old names, with a value that means unset
                made.set(name, key, value)
        elif not is_default:
            made.reject(key, _unknown(key, name, config, methods))
    return made


def _of_attribute(name: str) -> str:
    """AlgorithmConfig.to_dict() has the names of attributes, some of which differ from those of the arguments."""
    return name.removeprefix("callbacks_" if name.startswith("callbacks_on_") else "_")


def _unknown(key: Any, name: str, config: Any, methods: Mapping[str, str]) -> str:
    called = f"(today {name!r}) " if key in RENAMED else ""
    advice = near_miss(str(key), [*methods, *RENAMED, *VALUES, *REJECTED])
    if key in OTHER_LIBRARIES:
        advice = f": did you mean {OTHER_LIBRARIES[key]}?"
    text = f"{called}is not a setting of {config.algo_class.__name__}"
    if advice.startswith(":") and not called:
        return f"{text}{advice}"
    return f"{text} in RLlib's new API stack"


def _methods(config: Any) -> dict[str, str]:
    """By argument: the method of AlgorithmConfig that takes it today. Arguments that RLlib deprecated are left out."""
    from ray._common.deprecation import DEPRECATED_VALUE

    found: dict[str, str] = {}
    for method in METHODS:
        for owner in type(config).__mro__:
            for each in inspect.signature(vars(owner)[method]).parameters.values() if method in vars(owner) else ():
                if each.kind is each.VAR_KEYWORD or each.name == "self" or same(each.default, DEPRECATED_VALUE):
                    continue
                found.setdefault(each.name, method)
    return found


def _apply(config: Any, made: Translation) -> Exception | None:
    """Call the methods; what they refuse is added to the problems. Returns the first error."""
    from ray.rllib.utils.schedules.scheduler import Scheduler

    cause: Exception | None = None
    methods = _methods(config)
    for argument, (key, given) in made.arguments.items():
        try:
            if same(given, vars(config).get(argument, made)):
                continue  # its method may refuse the default that it has itself
            if argument not in methods and argument not in vars(config):
                made.reject(key, f"is not a setting of {config.algo_class.__name__}")
                continue
            if argument in WHOLE_NUMBERS and given is not None:
                whole_number(given, key, least=WHOLE_NUMBERS[argument])
            value = _nested(config, made, argument, key, given)
            if argument in ("lr", "entropy_coeff", "epsilon"):
                Scheduler.validate(fixed_value_or_schedule=value, setting_name=argument, description="value")
            if argument in methods:
                getattr(config, methods[argument])(**{argument: value})
            else:
                setattr(config, argument, value)
        except ConfigError as error:
            made.reject(key, str(error).removeprefix(f"{key} ").rstrip("."))
        except (ValueError, TypeError, AssertionError, AttributeError, KeyError, IndexError) as error:
            made.reject(key, f"is {shown(given)}, which RLlib refuses: {str(error).strip().rstrip('.!')}")
            cause = cause or error
    if config.is_multi_agent:
        if config._env_to_module_connector is config_values.mean_std_filter:
            config.env_runners(env_to_module_connector=partial(config_values.mean_std_filter, multi_agent=True))
        replay = getattr(config, "replay_buffer_config", None) or {}
        if replay.get("type") in ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"):
            config.replay_buffer_config = {**replay, "type": f"MultiAgent{replay['type']}"}
    return cause


def _nested(config: Any, made: Translation, argument: str, key: str, value: Any) -> Any:
    """Values that are configs themselves, and the replay buffer, whose other entries RLlib drops with another type."""
    if argument == "evaluation_config" and isinstance(value, Mapping):
        return _overrides(config, made, key, value)
    if argument == "algorithm_config_overrides_per_module" and isinstance(value, Mapping):
        return {name: _overrides(config, made, f"{key}.{name}", each) for name, each in value.items()}
    if argument == "replay_buffer_config" and "capacity" in (config.replay_buffer_config or {}):
        return {"capacity": config.replay_buffer_config["capacity"], **value}
    return copy.deepcopy(value) if isinstance(value, dict) else value


def _overrides(config: Any, made: Translation, key: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a dict changes in `config`, by the names of its attributes."""
    changed = config.copy(copy_frozen=False)
    own = _translated(
        changed, {name: value for name, value in given.items() if name != "in_evaluation"}, overrides=True
    )
    _apply(changed, own)
    made.problems += [f"{key}: {problem}" for problem in own.problems]
    before = vars(config)
    return {
        name: value
        for name, value in vars(changed).items()
        if name in own.arguments or not same(value, before.get(name, made))
    }
