"""Searchers: what proposes the configurations of an experiment. Each name is loaded on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.compat.search import SearchAlgorithm as SearchAlgorithm
    from paceline.compat.search import SearchGenerator as SearchGenerator
    from paceline.tune.search.basic_variant import BasicVariantGenerator as BasicVariantGenerator
    from paceline.tune.search.concurrency_limiter import ConcurrencyLimiter as ConcurrencyLimiter
    from paceline.tune.search.create import create_searcher as create_searcher
    from paceline.tune.search.hyperopt import HyperOptSearch as HyperOptSearch
    from paceline.tune.search.optuna import OptunaSearch as OptunaSearch
    from paceline.tune.search.repeater import Repeater as Repeater
    from paceline.tune.search.sample import grid_search as grid_search
    from paceline.tune.search.searcher import Searcher as Searcher

_HOMES = {
    "BasicVariantGenerator": "basic_variant",
    "ConcurrencyLimiter": "concurrency_limiter",
    "HyperOptSearch": "hyperopt",
    "OptunaSearch": "optuna",
    "Repeater": "repeater",
    "Searcher": "searcher",
    "create_searcher": "create",
    "grid_search": "sample",
}
_MODULES = (
    "basic_variant",
    "concurrency_limiter",
    "hyperopt",
    "optuna",
    "repeater",
    "sample",
    "searcher",
    "variant_generator",
)
_OLDER = ("SearchAlgorithm", "SearchGenerator")

__all__ = [*_HOMES, *_OLDER]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _OLDER:
        from paceline.compat import search

        return getattr(search, name)
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    from paceline.tune.search.absent import ADVICE

    raise no_such_name(__name__, name, ADVICE)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_OLDER, *_MODULES])
