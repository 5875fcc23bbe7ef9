"""The algorithm and the config of an RLTrainer, as RLlib's new API stack wants them.

A config dict may have today's names, which are the arguments of AlgorithmConfig's methods, and the names of older
versions: `config_keys.py` has them all. What depends on the environment or on the machine, such as spaces that an
algorithm cannot learn with, shows only in the worker.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.train.rl.config_dict import fill
from paceline.train.rl.config_keys import ALGORITHMS, REMOVED_ALGORITHMS, RENAMED

__all__ = [
    "algorithm_class",
    "algorithm_config",
    "check_together",
    "with_env_runners",
    "with_failures_reported",
]


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
