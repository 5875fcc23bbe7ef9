"""Callbacks and multi-agent settings of RLlib's older config dicts, as its new API stack wants them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.air.checks import near_miss
from paceline.train.rl.config_values import Translation

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
