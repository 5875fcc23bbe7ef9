"""What a worker finds around itself: its variables, as bytes, and the threads of numeric libraries."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

Environment = dict[bytes, bytes]


# Variables need not be text, and most never change.


def current() -> Environment:
    return dict(os.environb)


def with_variables(environment: Environment, variables: Mapping[str, str]) -> Environment:
    """The environment with more variables in it."""
    return {**environment, **{os.fsencode(name): os.fsencode(value) for name, value in variables.items()}}


def difference(before: Environment, after: Environment) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """What to set and what to remove to get from one to the other."""
    changed = [item for item in after.items() if before.get(item[0]) != item[1]]
    return changed, [name for name in before if name not in after]


def change(changed: Iterable[tuple[bytes, bytes]], removed: Iterable[bytes]) -> None:
    """Change the environment of this process."""
    for name in removed:
        os.environb.pop(name, None)
    for name, value in changed:
        os.environb[name] = value


# Threads


def wanted_threads(threads: int | None, environment: Mapping[bytes, bytes]) -> int | None:
    """What to set in libraries that are loaded already; the user's own setting was read at their import."""
    return None if b"OMP_NUM_THREADS" in environment else threads


class ThreadPools:
    """The pools of libraries that the warden has loaded.

    They are set in the warden before a fork, not in the worker: in a forked process
    OpenBLAS answers by starting its threads anew, and those spin for tens of milliseconds.
    """

    def __init__(self) -> None:
        self._controller: Any = None
        self._limiter: Any = None
        self._limit: int | None = None
        if "numpy" in sys.modules:
            try:
                import threadpoolctl
            except ImportError:
                return
            self._controller = threadpoolctl.ThreadpoolController()  # Looks through all libraries: only once.

    def set(self, limit: int | None) -> None:
        """Limit the pools of this process and of those forked from it; None undoes that."""
        if self._controller is None or limit == self._limit:
            return
        if self._limiter is not None:
            self._limiter.restore_original_limits()
        self._limiter = None if limit is None else self._controller.limit(limits=limit)
        self._limit = limit


def call_setters(setters: Iterable[str], threads: int | None) -> None:
    """For libraries that count for themselves: the functions that take the number, where they are loaded already."""
    for setter in setters if threads is not None else ():
        module, _, function = setter.partition(":")
        if module in sys.modules:
            getattr(sys.modules[module], function)(threads)
