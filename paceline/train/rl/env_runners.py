"""Env runners whose errors reach the process that learns. Imported only where RLlib is used.

RLlib's own write an error of the environment to their log and end the process, so that the learner sees no more than a
process that died.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from paceline.train.rl import rllib  # noqa: F401  (first: a process that Ray starts imports this module)

# isort: split
from ray.exceptions import RayTaskError
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

_COLOURS = re.compile(r"\x1b\[\d*m")


class ReportingEnvRunner(SingleAgentEnvRunner):  # type: ignore[misc]  # ray has no types here
    """Plays episodes of one agent."""

    def apply(self, func: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """The learner's process calls this for whatever it wants from the runner."""
        return _applied(self, func, *arguments, **keywords)


class ReportingMultiAgentEnvRunner(MultiAgentEnvRunner):  # type: ignore[misc]  # the same
    """Plays episodes of several agents."""

    def apply(self, func: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return _applied(self, func, *arguments, **keywords)


def _applied(runner: Any, func: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    try:
        return func(runner, *arguments, **keywords)
    except Exception as error:
        raise what_failed(error) from None


def with_reporting_runners(config: Any) -> Any:
    """`config` with these env runners, unless it has some of its own or lets RLlib start failed ones again."""
    if config.env_runner_cls is None and not config.restart_failed_env_runners:
        several = config.is_multi_agent
        config.env_runners(env_runner_cls=ReportingMultiAgentEnvRunner if several else ReportingEnvRunner)
    return config


def what_failed(error: Exception) -> Exception:
    """The error of the environment itself: RLlib raises another one, without a word, in its place."""
    if isinstance(error, RayTaskError):
        trace = _COLOURS.sub("", str(error)).rstrip()  # of the other process
        return RuntimeError(f"An env runner failed: {trace.splitlines()[-1]}\n{trace}")
    is_empty = type(error) is RuntimeError and not error.args
    return error.__cause__ if is_empty and isinstance(error.__cause__, Exception) else error
