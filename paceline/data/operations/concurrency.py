"""How many processes run a user's function, in its new and its old spelling."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from paceline.air.checks import warn_at_users_line, whole_number
from paceline.air.errors import ConfigError

Processes = tuple[int, int]
"""At least and at most this many."""


_RESOURCES = (
    *("accelerator_type", "compute", "memory", "num_cpus", "num_gpus", "object_store_memory", "resources"),
    *("max_restarts", "max_retries", "max_task_retries", "runtime_env", "scheduling_strategy"),
)
"""Settings of a cluster's scheduler, which there is none of: accepted, without effect, with a warning."""


class ActorPoolStrategy:
    """The old spelling of `concurrency`: ``compute=ActorPoolStrategy(size=2)`` is ``concurrency=2``.

    ``ActorPoolStrategy(1, 4)`` is the oldest form, of min_size and max_size. `max_tasks_in_flight_per_actor` has no
    meaning: a process has one portion of rows at work and one waiting.
    """

    def __init__(
        self,
        legacy_min_size: int | None = None,
        legacy_max_size: int | None = None,
        *,
        size: int | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        max_tasks_in_flight_per_actor: int | None = None,
    ) -> None:
        min_size = legacy_min_size if min_size is None else min_size
        max_size = legacy_max_size if max_size is None else max_size
        if size is not None and (min_size is not None or max_size is not None):
            raise ConfigError("ActorPoolStrategy: give size, or min_size and max_size, not both.")
        if size is not None:
            self.processes = _checked(size, size, "ActorPoolStrategy(size)")
        else:
            least = 1 if min_size is None else min_size
            most = max(least, _cores()) if max_size is None else max_size
            self.processes = _checked(least, most, "ActorPoolStrategy(min_size, max_size)")

    def __repr__(self) -> str:
        return f"ActorPoolStrategy(min_size={self.processes[0]}, max_size={self.processes[1]})"


def processes_wanted(concurrency: Any, compute: Any) -> Processes | None:
    """How many processes the user asked for; None: the function runs in the process that reads."""
    if concurrency is not None and compute is not None:
        raise ConfigError("Give concurrency or compute, not both: compute is the old spelling.")
    if concurrency is not None:
        if isinstance(concurrency, tuple) and len(concurrency) == 2:
            return _checked(*concurrency, "concurrency")
        return _checked(concurrency, concurrency, "concurrency")
    if compute is None or compute == "tasks":
        return None
    if isinstance(compute, ActorPoolStrategy):
        return compute.processes
    if compute == "actors":
        return ActorPoolStrategy().processes
    raise ConfigError(f'compute is {compute!r}: use concurrency=n for n processes ("actors" and "tasks" work too).')


def check_resources(method: str, settings: Mapping[str, Any]) -> None:
    """Accept the settings of a cluster's scheduler, with a warning that they have no effect; reject all others."""
    for name, value in settings.items():
        if name not in _RESOURCES:
            raise TypeError(f"{method}() has no setting {name!r}. Arguments for the function go to fn_kwargs.")
        if value is not None:
            warn_at_users_line(
                f"{method}: {name} has no effect: functions run in the process that reads, on its cores and devices. "
                f"concurrency=n gives them n processes."
            )


def _checked(least: Any, most: Any, name: str) -> Processes:
    advice = "It is a number of processes, or (least, most)."
    fewest = whole_number(least, name, least=1, advice=advice)
    return fewest, whole_number(most, name, least=fewest, advice=advice)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
