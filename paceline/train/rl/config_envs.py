"""Environments that the user's program registered under a name, shipped to the processes that run them.

`ray.tune.register_env` and `gymnasium.register` note a name in their own process only. A worker starts fresh, and so do
the env runners, which are actors of Ray: there RLlib looks up names that Ray Tune knows. So every name that a fresh
process would not know travels as a function that makes the environment, and the worker registers it with Ray Tune.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.train.rl.config_values import Translation
from paceline.train.rl.offline import offline_kind

HOW = (
    "Give the name of an environment that gymnasium has, a class derived from gymnasium.Env or MultiAgentEnv, or a "
    "name that your program registered: ray.tune.register_env(name, lambda config: MyEnv(config))."
)


@dataclass(frozen=True)
class FromSpec:
    """Makes an environment that was registered with gymnasium, where gymnasium may not know it."""

    spec: Any

    def __call__(self, config: Mapping[str, Any]) -> Any:
        import gymnasium

        return gymnasium.make(self.spec, **config)


@dataclass(frozen=True)
class FromClass:
    """Makes an environment of a class, which gets the config as RLlib passes it."""

    env_class: Callable[[Any], Any]

    def __call__(self, config: Any) -> Any:
        return self.env_class(config)


def shipped_registrations(config: Any) -> dict[str, Callable[[Any], Any]]:
    """By name: what makes the environments that `config` names and a fresh process does not know."""
    evaluation = config.evaluation_config
    own = [config.env]
    if isinstance(evaluation, Mapping):
        own.append(evaluation.get("env"))
    elif evaluation is not None:
        own.append(evaluation.env)
    if config.env is None and offline_kind(config.algo_class) is None:
        raise ConfigError(f"config has no 'env', and {config.algo_class.__name__} learns in one. {HOW}")
    found: dict[str, Callable[[Any], Any]] = {}
    for env in own:
        if isinstance(env, str):
            creator = _creator(env)
            if creator is not None:
                found[env] = creator
        elif env is not None and not isinstance(env, type):
            kind = "a function" if callable(env) else f"an object of {type(env).__name__}"
            raise ConfigError(f"'env' is {kind}. {HOW}")
        elif isinstance(env, type) and not hasattr(env, "reset"):
            raise ConfigError(f"'env' is the class {env.__name__}, which is not an environment: no reset(). {HOW}")
    return found


def register_again(registrations: Mapping[str, Callable[[Any], Any]]) -> None:
    """In the worker, before or after it starts Ray: the names are known to it and to its actors."""
    from ray.tune.registry import register_env

    for name, creator in registrations.items():
        register_env(name, creator)


def _creator(name: str) -> Callable[[Any], Any] | None:
    """What makes the environment of this name; None if any process knows it."""
    import gymnasium
    from ray.tune import registry

    by_tune: Any = registry._global_registry  # untyped
    if by_tune.contains(registry.ENV_CREATOR, name):
        creator: Callable[[Any], Any] = by_tune.get(registry.ENV_CREATOR, name)
        return creator
    try:
        spec = gymnasium.spec(name)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        if "." in name and "/" not in name and ":" not in name:
            return FromClass(_class_of(name))
        near = difflib.get_close_matches(name, gymnasium.registry, n=1)
        advice = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"'env' is {name!r}, which is registered neither with ray.tune nor with gymnasium.{advice} {HOW} Names "
            "registered with ray.tune are lost with ray.shutdown(): register them again."
        ) from error
    point = spec.entry_point
    if isinstance(point, str) and point.startswith(("gymnasium.", "gymnasium:")):
        return None
    if isinstance(point, str) and point.startswith("__main__:"):
        spec = copy.copy(spec)
        spec.entry_point = getattr(importlib.import_module("__main__"), point.partition(":")[2])
    return FromSpec(spec)


def _class_of(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"'env' is {path!r}, but there is no such class: {error}. {HOW}") from error


CALLED_WITH_ENV_RUNNER = (
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)


def callbacks(made: Translation, key: str, value: Any) -> None:
    classes = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, Mapping) and value:
        made.reject(key, "is a dict of functions: give them by themselves ('on_episode_end': ...), or a class")
    elif value:
        for each in classes:
            for name, function in inspect.getmembers(each, inspect.isfunction):
                for gone in ("worker", "base_env", "policies") if name in CALLED_WITH_ENV_RUNNER else ():
                    parameter = inspect.signature(function).parameters.get(gone)
                    if parameter is not None and parameter.default is parameter.empty:
                        made.reject(
                            key, f"has {name}(), which requires {gone!r}: RLlib passes env_runner and env instead"
                        )
        made.set("callbacks_class", key, value)


def multiagent(made: Translation, key: str, value: Any) -> None:
    for name, setting in made.mapping(key, value).items():
        if name in ("policies", "policy_mapping_fn"):
            {"policies": policies, "policy_mapping_fn": policy_mapping_fn}[name](made, f"{key}.{name}", setting)
        elif name in ("policies_to_train", "count_steps_by"):
            made.set(name, f"{key}.{name}", setting)
        elif name in ("observation_fn", "replay_mode") and setting not in (None, "independent"):
            made.reject(f"{key}.{name}", "has no counterpart in RLlib's new API stack: do it in the environment")
        elif name not in ("policy_map_capacity", "policy_map_cache", "policy_states_are_swappable", "replay_mode"):
            known = ["policies", "policy_mapping_fn", "policies_to_train", "count_steps_by"]
            made.reject(f"{key}.{name}", f"is not a multi-agent setting{near_miss(name, known).rstrip('.')}")


def policies(made: Translation, key: str, value: Any) -> None:
    """Per policy: today a spec has its spaces, and its settings are overrides for the module of that name."""
    from ray.rllib.policy import policy

    policy_spec: Any = policy.PolicySpec
    if not isinstance(value, Mapping):
        if isinstance(value, set | list | tuple):
            made.set("policies", key, value)
        elif value is not None:
            made.reject(key, f"is of type {type(value).__name__}: give the names, or a dict of names and specs")
        return
    specs, settings = {}, {}
    for name, given in value.items():
        if not isinstance(given, policy_spec | list | tuple | None):
            made.reject(f"{key}.{name}", f"is of type {type(given).__name__}: give a PolicySpec, or None")
            continue
        spec = given if isinstance(given, policy_spec) else policy_spec(*(given or ()))
        if spec.policy_class is not None:
            advice = "RLModule, and give rl_module_spec="
            made.reject(f"{key}.{name}", f"has a policy class; the new API stack has none: write an {advice}")
        specs[name] = policy_spec(observation_space=spec.observation_space, action_space=spec.action_space)
        if spec.config:
            settings[name] = dict(spec.config.items())
    made.set("policies", key, specs)
    if settings:
        made.set("algorithm_config_overrides_per_module", key, settings)


def policy_mapping_fn(made: Translation, key: str, value: Any) -> None:
    if value is not None and not callable(value):
        made.reject(key, f"is of type {type(value).__name__}: give a function of the agent's id and the episode")
    elif value is not None:
        try:
            made.set("policy_mapping_fn", key, with_todays_arguments(value))
        except TypeError:
            made.reject(
                key, "must take the agent's id and the episode: def policy_mapping_fn(agent_id, episode, **kwargs)"
            )


@dataclass(frozen=True)
class MappingOfOld:
    """A policy_mapping_fn with the arguments of older versions, called as RLlib calls it today."""

    function: Callable[..., str]
    number: int
    """How many of (agent, episode, worker) the function takes by position."""
    names: tuple[str, ...] = ()
    """Those that it takes by name."""

    def __call__(self, agent_id: Any, episode: Any, **_: Any) -> str:
        return self.function(*(agent_id, episode, None)[: self.number], **dict.fromkeys(self.names))


def with_todays_arguments(function: Callable[..., str]) -> Callable[..., str]:
    """RLlib passes the agent's id and the episode. It used to pass the worker too, and before that only the id."""
    signature = inspect.signature(function)
    for number, names in ((2, ()), (2, ("worker",)), (3, ()), (1, ())):
        try:
            signature.bind(*range(number), **dict.fromkeys(names))
        except TypeError:
            continue
        return function if (number, names) == (2, ()) else MappingOfOld(function, number, names)
    raise TypeError(f"{function} takes other arguments")
