"""The algorithm and the config of an RLTrainer, as RLlib's new API stack wants them.

A config dict may have today's names, which are the arguments of AlgorithmConfig's methods, and the names of older
versions: `config_keys.py` has them all. What depends on the environment or on the machine, such as spaces that an
algorithm cannot learn with, shows only in the worker.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paceline.air.checks import near_miss, whole_number
from paceline.air.errors import ConfigError
from paceline.train.rl import config_envs, config_values
from paceline.train.rl.config_keys import (
    ALGORITHMS,
    DROPPED,
    METHODS,
    OTHER_LIBRARIES,
    REJECTED,
    REMOVED_ALGORITHMS,
    RENAMED,
    SCHEDULES,
    WHOLE_NUMBERS,
)
from paceline.train.rl.config_values import Translation, same, shown


def algorithm_class(algorithm: str | type) -> type:
    """The Algorithm class for the name of an algorithm, or for the class itself."""
    from paceline.train.rl import rllib  # noqa: F401

    if isinstance(algorithm, str):
        found = _by_name(algorithm)
    else:
        from ray.rllib.algorithms.algorithm import Algorithm

        if not isinstance(algorithm, type) or not issubclass(algorithm, Algorithm) or algorithm is Algorithm:
            raise ConfigError(
                f"algorithm is {algorithm!r}: give the name of an RLlib algorithm, such as 'PPO', or a class that "
                "derives from ray.rllib.algorithms.Algorithm."
            )
        found = algorithm
    _default_config(found)
    return found


def _by_name(name: str) -> type:
    meant = {each.lower(): each for each in ALGORITHMS}
    plain = name.lower().removesuffix("trainer")
    if plain not in meant:
        for gone, nearest in REMOVED_ALGORITHMS.items():
            if plain == gone.lower() or (gone == "Bandit" and plain.startswith("bandit")):
                there_are = ", ".join(ALGORITHMS)
                raise ConfigError(f"RLlib no longer has {gone}; the nearest is {nearest!r}. There are: {there_are}.")
        raise ConfigError(f"RLlib has no algorithm {name!r}{near_miss(name, ALGORITHMS)}")
    # Not by RLlib's registry, which imports all algorithms: one of them needs Pillow.
    try:
        package = importlib.import_module(f"ray.rllib.algorithms.{plain}")
    except ImportError as error:
        raise ConfigError(f"{meant[plain]} needs a package that is not installed here: {error}.") from error
    found: type = getattr(package, meant[plain])
    return found


def _default_config(algorithm: Any) -> Any:
    """The AlgorithmConfig that an algorithm starts from."""
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    config = algorithm.get_default_config()
    if not isinstance(config, AlgorithmConfig) or _on_old_stack(config):
        raise ConfigError(
            f"{algorithm.__name__} is written for RLlib's old API stack (Policy, ModelV2, RolloutWorker): port it to "
            "RLModule and Learner, or derive it from one of RLlib's algorithms."
        )
    config = config.copy(copy_frozen=False)
    config.algo_class = algorithm
    return config


def _on_old_stack(config: Any) -> bool:
    return not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2)


def algorithm_config(algorithm: Any, config: Any) -> Any:
    """A new AlgorithmConfig for `algorithm`, from a dict or from the user's AlgorithmConfig, which stays as it is.

    The learner is in the process that runs the algorithm (num_learners=0) unless the config says otherwise. Several
    wrong keys are reported together.
    """
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    default = _default_config(algorithm)
    if isinstance(config, AlgorithmConfig):
        made = _copied(config, algorithm, default)
        learners_chosen = config.num_learners != default.num_learners
    elif config is None or isinstance(config, Mapping):
        made, given = default.copy(copy_frozen=False), dict(config or {})
        learners_chosen = any(RENAMED.get(key, key) == "num_learners" for key in given)
        fill(made, given)
    else:
        raise ConfigError(f"config is of type {type(config).__name__}: give a dict, or an AlgorithmConfig of RLlib.")
    if not learners_chosen:
        made.learners(num_learners=0)
    if made.lr is not None and hasattr(made, "actor_lr") and made.lr == default.lr:
        made.training(lr=None)  # CQL has a default that it refuses itself
    return made


def _copied(config: Any, algorithm: Any, default: Any) -> Any:
    name, its_class = type(config).__name__, config.algo_class
    if _on_old_stack(config):
        raise ConfigError(
            f"config, a {name}, selects RLlib's old API stack. paceline runs the new one only: leave api_stack() out."
        )
    if config.framework_str != "torch":
        raise ConfigError(f"config has framework({config.framework_str!r}), but RLlib's new API stack is PyTorch only.")
    fits = isinstance(its_class, type) and issubclass(algorithm, its_class) and isinstance(config, type(default))
    if not fits and type(config) is not type(default):
        raise ConfigError(
            f"config is a {name}, which does not fit the algorithm {algorithm.__name__}: give a "
            f"{type(default).__name__}, or a dict."
        )
    if not fits and its_class is not None:
        of = its_class.__name__ if isinstance(its_class, type) else its_class
        raise ConfigError(f"config, a {name}, is for {of}, not for {algorithm.__name__}: give algorithm={of}.")
    made = config.copy(copy_frozen=False)
    made.algo_class = algorithm
    return made


def with_env_runners(
    config: Any, num: int | None, cpus_per_runner: float | None, gpus_per_runner: float | None, use_gpu: bool
) -> Any:
    """`config` with the given number of env runners and their resources; None leaves what it says.

    With `use_gpu`, the learner computes on a GPU; env runners get one only by `gpus_per_runner`.
    """
    given = {
        "num_env_runners": num,
        "num_cpus_per_env_runner": cpus_per_runner,
        "num_gpus_per_env_runner": gpus_per_runner,
    }
    config.env_runners(**{name: value for name, value in given.items() if value is not None})
    if use_gpu and not config.num_gpus_per_learner:
        config.learners(num_gpus_per_learner=1)
    return config


def with_failures_reported(config: Any, given: Any) -> Any:
    """`config` so that an env runner that fails ends the attempt: the run's FailureConfig decides what comes next.

    RLlib would start the runner again a minute later, a thousand times and without a word: with a mistake in its
    environment a run would train for hours on nothing. A config that changes how often RLlib does that keeps RLlib's
    way.
    """
    default = type(config)()
    keys = given if isinstance(given, Mapping) else {}
    asked = any(RENAMED.get(key, key) in _OWN_TOLERANCE for key in keys)
    if not asked and all(getattr(config, name) == getattr(default, name) for name in _OWN_TOLERANCE):
        config.fault_tolerance(restart_failed_env_runners=False)
    return config


_OWN_TOLERANCE = ("restart_failed_env_runners", "ignore_env_runner_failures", "max_num_env_runner_restarts")
"""A config that changes one of these says what to do about env runners that fail."""


def check_together(config: Any) -> None:
    """Raise ConfigError for settings that RLlib refuses in combination; `config` stays as it is.

    Call it when everything is set, also what comes from the datasets.
    """
    checked, log = config.copy(copy_frozen=False), logging.getLogger("ray.rllib")
    level = log.level
    log.setLevel(logging.ERROR)  # among its warnings is one that the new API stack is used
    try:
        checked.validate()
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"config: {error}") from error
    finally:
        log.setLevel(level)


# -- config dicts of RLlib, of today and of older versions, become calls of AlgorithmConfig's methods --------


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
