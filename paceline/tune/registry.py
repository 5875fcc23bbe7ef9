"""Trainables and environments by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.air.absent import advise
from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError

__all__ = ["get_env_creator", "get_trainable", "register_env", "register_trainable"]

_trainables: dict[str, Any] = {}
_environments: dict[str, Callable[[dict[str, Any]], Any]] = {}


def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:
    """Let `Tuner(name)` and `tune.run(name)` mean this trainable, in this process. `warn` is taken for old code."""
    from paceline.tune.trainable.kinds import kind_of

    kind_of(trainable)  # what cannot be run is refused here
    _trainables[_checked(name)] = trainable


def get_trainable(name: str) -> Any:
    """The trainable of this name; ConfigError if there is none."""
    if name not in _trainables:
        known = near_miss(name, list(_trainables)) if _trainables else "; none is registered."
        raise ConfigError(f"No trainable is registered as {name!r}{known} Call tune.register_trainable() first.")
    return _trainables[name]


def register_env(name: str, env_creator: Callable[[dict[str, Any]], Any]) -> None:
    """Keep a function that makes an environment, for reinforcement learning."""
    if not callable(env_creator):
        raise ConfigError(f"register_env({name!r}, ...) takes a function of a config, not {env_creator!r}.")
    _environments[_checked(name)] = env_creator


def get_env_creator(name: str) -> Callable[[dict[str, Any]], Any]:
    """The function that was registered for an environment."""
    if name not in _environments:
        raise ConfigError(f"No environment is registered as {name!r}: call tune.register_env() first.")
    return _environments[name]


def _checked(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"A name is a string that is not empty, not {name!r}.")
    return name


_INPUTS = "pass the input as tune.with_parameters(trainable, name=...)"
advise(
    __name__,
    {
        "get_trainable_cls": "get_trainable(name) returns what was registered",
        "is_function_trainable": "use inspect.isclass() on what get_trainable(name) returns",
        "validate_trainable": "register_trainable() rejects what cannot be run",
        **dict.fromkeys(("register_input", "registry_contains_input", "registry_get_input"), _INPUTS),
    },
)
