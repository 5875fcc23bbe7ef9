"""Searchers that are known by name and not here: importing one says what to use instead."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NoReturn

_GAUSSIAN = 'OptunaSearch(sampler="gp") searches with a Gaussian process'
_TREES = 'OptunaSearch() searches with tree-structured Parzen estimators, and OptunaSearch(sampler="gp") with a GP'
ELSEWHERE = {
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
"""By the name that create_searcher() is asked for: the searcher, and what does its job."""
_MODULES = {"flaml" if name in ("blendsearch", "cfo") else name for name in ELSEWHERE}


def advice_for(searcher: str) -> str:
    """What does the job of a searcher that is known by name and not here; empty for any other name."""
    for name, substitute in ELSEWHERE.values():
        if name == searcher:
            return f"{name} is not part of paceline. {substitute}. See paceline.tune.search.optuna."
    return ""


class AbsentModule(ModuleType):
    """Stands for a module such as ``paceline.tune.search.ax``: what is imported from it raises, with the advice."""

    def __getattr__(self, name: str) -> NoReturn:
        advice = advice_for(name)
        if advice:
            raise ImportError(advice, name=self.__name__)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def stand_in_for_modules(package: str) -> None:
    """Let ``from <package>.ax import AxSearch`` find something that can answer."""
    for module in _MODULES:
        sys.modules[f"{package}.{module}"] = AbsentModule(f"{package}.{module}")
