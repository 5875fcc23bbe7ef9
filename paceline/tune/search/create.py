"""Searchers by name, and what to use in the place of those that are not here."""

from __future__ import annotations

import importlib
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.tune.search.searcher import Searcher

_OURS = {
    "random": ("basic_variant", "BasicVariantGenerator"),
    "variant_generator": ("basic_variant", "BasicVariantGenerator"),
    "optuna": ("optuna", "OptunaSearch"),
    "hyperopt": ("hyperopt", "HyperOptSearch"),
}

_GAUSSIAN = 'OptunaSearch(sampler="gp") searches with a Gaussian process'
_TREES = 'OptunaSearch() searches with tree-structured Parzen estimators, and OptunaSearch(sampler="gp") with a GP'
_ELSEWHERE = {
    "ax": ("AxSearch", _GAUSSIAN),
    "bayesopt": ("BayesOptSearch", _GAUSSIAN),
    "bohb": ("TuneBOHB", "OptunaSearch() is the same kind of model; give it an ASHAScheduler or HyperBandScheduler"),
    "dragonfly": ("DragonflySearch", _GAUSSIAN),
    "hebo": ("HEBOSearch", _GAUSSIAN),
    "nevergrad": (
        "NevergradSearch",
        'OptunaSearch(sampler="cmaes") and OptunaSearch(sampler="nsga2") are evolutionary searches, and '
        'OptunaSearch(sampler="qmc") covers the space evenly',
    ),
    "sigopt": ("SigOptSearch", _GAUSSIAN),
    "skopt": ("SkOptSearch", _GAUSSIAN),
    "zoopt": ("ZOOptSearch", 'OptunaSearch(sampler="cmaes") searches without gradients'),
    "blendsearch": ("BlendSearch", _TREES),
    "cfo": ("CFO", 'OptunaSearch(sampler="cmaes") searches locally, from points_to_evaluate if you give some'),
}


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """The searcher of that name: "random", "optuna" or "hyperopt"; keywords are its arguments."""
    name = search_alg.lower() if isinstance(search_alg, str) else search_alg
    if name in _OURS:
        module, searcher = _OURS[name]
        made = getattr(importlib.import_module(f"paceline.tune.search.{module}"), searcher)(**kwargs)
        assert isinstance(made, Searcher)
        return made
    if name in _ELSEWHERE:
        raise ImportError(advice_for(_ELSEWHERE[name][0]))
    raise ConfigError(f"There is no searcher {search_alg!r}{near_miss(str(search_alg), list(_OURS))}")


def advice_for(searcher: str) -> str:
    """What does the job of a searcher that is known by name and not here; empty for any other name."""
    for name, substitute in _ELSEWHERE.values():
        if name == searcher:
            return f"{name} is not part of paceline. {substitute}. See paceline.tune.search.optuna."
    return ""
