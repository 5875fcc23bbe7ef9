"""What a training iteration of RLlib reports, as a row with the names of three generations of its API."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_OUR_OWN = (
    *("config", "date", "done", "hostname", "iterations_since_restore", "node_ip", "perf", "pid", "time_since_restore"),
    *("time_this_iter_s", "time_total_s", "timestamp", "training_iteration", "trial_id"),
    *("env_runner_group", "num_training_step_calls_per_iteration"),
)
"""A row has these from the run, or as `result.config`; the last ones say nothing about the training."""
_EPISODES = {
    "episode_reward_mean": "episode_return_mean",
    "episode_reward_min": "episode_return_min",
    "episode_reward_max": "episode_return_max",
    "episode_len_mean": "episode_len_mean",
}
"""Names of Ray 2.6 and before -> those of the new API stack."""
_DETAILS = ("_timer", "_throughput", "connector", "_length_in", "_length_out", "weights_seq_no")
"""Parts of the names of what RLlib measures of its own steps: a hundred numbers. The sums are in "timers"."""


def row_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of an iteration.

    Everything that RLlib measured is there under RLlib's names, in nested dictionaries ("env_runners", "learners",
    "evaluation", ...). What episodes gave is there under the older names too. While no episode has ended it is NaN,
    so that a stop criterion can wait for it.
    """
    found = {name: _kept(value) for name, value in result.items() if name not in _OUR_OWN}
    row: dict[str, Any] = {}
    runners = found.get("env_runners")
    if isinstance(runners, dict):
        found["env_runners"] = runners = _episodes_in(runners)
        row.update({old: runners[new] for old, new in _EPISODES.items()})
        row["episodes_this_iter"] = runners.get("num_episodes", 0)
        row["episodes_total"] = runners.get("num_episodes_lifetime", 0)
    if "num_env_steps_sampled_lifetime" in found:
        row["timesteps_total"] = found["num_env_steps_sampled_lifetime"]
    evaluation = found.get("evaluation")
    if isinstance(evaluation, dict) and isinstance(evaluation.get("env_runners"), dict):
        episodes = _episodes_in(evaluation["env_runners"])
        older = {old: episodes[new] for old, new in _EPISODES.items()}
        found["evaluation"] = {**older, **evaluation, "env_runners": episodes}
    found.pop("timers", None)
    timers = result.get("timers")
    return {**row, **found, **({"timers": dict(timers)} if isinstance(timers, Mapping) else {})}


def _episodes_in(runners: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(_EPISODES.values(), math.nan), **runners}


def _kept(value: Any) -> Any:
    """Without the details, and with text as the keys of dictionaries: RLlib has numbers among them."""
    if not isinstance(value, Mapping):
        return value
    return {str(name): _kept(each) for name, each in value.items() if not any(part in str(name) for part in _DETAILS)}
