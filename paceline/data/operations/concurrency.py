"""How many processes run a user's function, in its new and its old spelling."""

from __future__ import annotations

import os
from typing import Any

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError

Processes = tuple[int, int]
"""At least and at most this many."""


class ActorPoolStrategy:
    """The old spelling of `concurrency`: ``compute=ActorPoolStrategy(size=2)`` is ``concurrency=2``."""

    def __init__(self, *, size: int | None = None, min_size: int | None = None, max_size: int | None = None) -> None:
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


def _checked(least: Any, most: Any, name: str) -> Processes:
    advice = "It is a number of processes, or (least, most)."
    fewest = whole_number(least, name, least=1, advice=advice)
    return fewest, whole_number(most, name, least=fewest, advice=advice)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
