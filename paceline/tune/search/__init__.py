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
    "variant_generator",
)


def _advice() -> Mapping[str, str]:
    from paceline.tune.search.absent import ADVICE

    return ADVICE


with lazy_imports(__name__, _MODULES, _advice):
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
