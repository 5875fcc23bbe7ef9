"""Searchers: what proposes the configurations of an experiment. Each name is loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.air.lazy import lazy_imports

_MODULES = (
    "basic_variant",
    "concurrency_limiter",
    "hyperopt",
    "optuna",
    "repeater",
    "sample",
    "searcher",
    "variants",
)


def _advice() -> Mapping[str, str]:
    from paceline.tune.by_name import SEARCHER_ADVICE

    return SEARCHER_ADVICE


with lazy_imports(__name__, _MODULES, _advice):
    from paceline.compat.search import SearchAlgorithm as SearchAlgorithm
    from paceline.compat.search import SearchGenerator as SearchGenerator
    from paceline.tune.by_name import create_searcher as create_searcher
    from paceline.tune.search.basic_variant import BasicVariantGenerator as BasicVariantGenerator
    from paceline.tune.search.hyperopt import HyperOptSearch as HyperOptSearch
    from paceline.tune.search.optuna import OptunaSearch as OptunaSearch
    from paceline.tune.search.sample import grid_search as grid_search
    from paceline.tune.search.searcher import Searcher as Searcher
    from paceline.tune.search.wrapping_searcher import ConcurrencyLimiter as ConcurrencyLimiter
    from paceline.tune.search.wrapping_searcher import Repeater as Repeater
