"""How many threads the numeric libraries of a worker use."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Read by libraries when they are loaded: for those that a worker or its children load themselves."""


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
