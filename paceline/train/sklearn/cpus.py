"""Which CPUs an estimator uses: `n_jobs` and `thread_count` within a budget, at one level only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_JOBLIB_CPUS = "LOKY_MAX_CPU_COUNT"
"""What joblib takes for the size of the machine."""
_JOBLIB_FILES = "JOBLIB_TEMP_FOLDER"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Workers have them set; libraries have read them by now, and only new processes will."""
CPU_PARAMETERS = ("n_jobs", "thread_count")
_LEFT_ALONE = ("ColumnTransformer", "FeatureUnion", "LogisticRegression")
"""In the first two, starting processes takes longer than what these would do; in the third, n_jobs has no effect
any more and setting it warns. A number that the user set is respected all the same."""


def uses_cpus(estimator: Any) -> bool:
    """True if the estimator, or a part of it, can be told how many CPUs to use."""
    return any(not _left_alone(estimator, name) for name in _cpu_parameters(estimator))


def set_cpus(estimator: Any, cpus: int) -> dict[str, Any]:
    """Share `cpus` out over the estimator's parts; gives the values that were there before, for set_params.

    The outermost part that can work in parallel gets all of them, and what is inside of it works with one,
    so that there are never more than `cpus` at work. A smaller number that the user chose stays.
    """
    before: dict[str, Any] = {}
    parallel: list[str] = []
    for name in _cpu_parameters(estimator):
        value = estimator.get_params()[name]
        inside = any(name.startswith(outer) for outer in parallel)
        if value is None and _left_alone(estimator, name, also_plain=inside):
            continue
        wanted = 1 if inside else _within(value, cpus)
        if wanted > 1:
            parallel.append(name[: -len(name.rpartition("__")[2])])
        if wanted != value:
            before[name] = value
            estimator.set_params(**{name: wanted})
    return before


def _cpu_parameters(estimator: Any) -> list[str]:
    """Names for set_params, outer parts first."""
    found = [name for name in estimator.get_params() if name.rpartition("__")[2] in CPU_PARAMETERS]
    return sorted(found, key=lambda name: name.count("__"))


def _left_alone(estimator: Any, name: str, *, also_plain: bool = False) -> bool:
    """True for parts that are better left at None. In scikit-learn itself (`also_plain`) None means one CPU."""
    owner_name = name.rpartition("__")[0]
    owner = type(estimator.get_params()[owner_name] if owner_name else estimator)
    of_sklearn = owner.__module__.partition(".")[0] == "sklearn"
    return of_sklearn and (also_plain or owner.__name__ in _LEFT_ALONE)


def _within(value: Any, cpus: int) -> int:
    """What joblib makes of n_jobs on a machine with `cpus` CPUs, and never more than those."""
    if not isinstance(value, int) or value == 0:
        return cpus
    return min(value, cpus) if value > 0 else max(1, cpus + 1 + value)


@contextmanager
def cpu_budget(cpus: int | None, scratch: str | None) -> Iterator[None]:
    """Libraries with thread pools, and processes that joblib starts, keep to so many CPUs; None: the machine's.

    joblib's files go to `scratch`: where it puts them otherwise, in memory, they would stay there if the worker is
    killed.
    """
    from threadpoolctl import threadpool_limits

    before = {name: os.environ.get(name) for name in (_JOBLIB_CPUS, _JOBLIB_FILES, *_THREAD_VARIABLES)}
    for name in _THREAD_VARIABLES:
        # Set to a number of threads, every process that joblib starts would use so many; unset, they share the CPUs.
        os.environ.pop(name, None)
    if cpus is not None:
        os.environ[_JOBLIB_CPUS] = str(cpus)
    if scratch is not None:
        os.environ.setdefault(_JOBLIB_FILES, scratch)
    try:
        with threadpool_limits(cpus):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
