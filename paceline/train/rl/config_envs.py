"""Environments that the user's program registered under a name, shipped to the processes that run them.

`ray.tune.register_env` and `gymnasium.register` note a name in their own process only. A worker starts fresh, and so do
the env runners, which are actors of Ray: there RLlib looks up names that Ray Tune knows. So every name that a fresh
process would not know travels as a function that makes the environment, and the worker registers it with Ray Tune.
"""

from __future__ import annotations

import copy
import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.air.errors import ConfigError
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
