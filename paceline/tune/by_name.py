"""Searchers and schedulers by name, and what to use instead of those that do not exist here."""

from __future__ import annotations

import importlib
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.air.plugins import checked_made, plugin, plugin_names
from paceline.tune.schedulers.trial_scheduler import TrialScheduler
from paceline.tune.search.searcher import Searcher

_SEARCHERS = {
    "random": ("basic_variant", "BasicVariantGenerator"),
    "variant_generator": ("basic_variant", "BasicVariantGenerator"),
    "optuna": ("optuna", "OptunaSearch"),
    "hyperopt": ("hyperopt", "HyperOptSearch"),
}
_SCHEDULERS = {
    "fifo": "FIFOScheduler",
    "async_hyperband": "AsyncHyperBandScheduler",
    "asynchyperband": "AsyncHyperBandScheduler",
    "asha": "ASHAScheduler",
    "hyperband": "HyperBandScheduler",
    "median_stopping_rule": "MedianStoppingRule",
    "medianstopping": "MedianStoppingRule",
    "pbt": "PopulationBasedTraining",
    "pbt_replay": "PopulationBasedTrainingReplay",
    "pb2": "PB2",
    "resource_changing": "ResourceChangingScheduler",
}

_GAUSSIAN = 'OptunaSearch(sampler="gp") searches with a Gaussian process'
_TREES = 'OptunaSearch() searches with tree-structured Parzen estimators, and OptunaSearch(sampler="gp") with a GP'
_WRAP = "or derive from Searcher and call the library in suggest() and on_trial_complete()"
ELSEWHERE = {
    "ax": ("AxSearch", f"{_GAUSSIAN}, {_WRAP}"),
    "bayesopt": ("BayesOptSearch", f"{_GAUSSIAN}, {_WRAP}"),
    "bohb": ("TuneBOHB", "OptunaSearch() is the same kind of model; give it an ASHAScheduler or HyperBandScheduler"),
    "dragonfly": ("DragonflySearch", _GAUSSIAN),
    "hebo": ("HEBOSearch", _GAUSSIAN),
    "nevergrad": (
        "NevergradSearch",
        'OptunaSearch(sampler="cmaes") and OptunaSearch(sampler="nsga2") are evolutionary searches, and '
        'OptunaSearch(sampler="qmc") covers the space evenly',
    ),
    "sigopt": ("SigOptSearch", _GAUSSIAN),
    "skopt": ("SkOptSearch", f"{_GAUSSIAN}, {_WRAP}"),
    "zoopt": ("ZOOptSearch", 'OptunaSearch(sampler="cmaes") searches without gradients'),
    "blendsearch": ("BlendSearch", _TREES),
    "cfo": ("CFO", 'OptunaSearch(sampler="cmaes") searches locally, from points_to_evaluate if you give some'),
}
"""By the name that create_searcher() is asked for: the searcher, and what does its job."""

SEARCHER_ADVICE = dict(ELSEWHERE.values())
"""What to write instead of a searcher, by its class and by the module that has it in Ray Tune."""
for _module, (_searcher, _advice) in ELSEWHERE.items():
    SEARCHER_ADVICE[_module] = f"instead of {_searcher}, {_advice}"
_GOAL = "raise paceline.air.errors.ConfigError with a message of your own"
SEARCHER_ADVICE.update(
    dict.fromkeys(("UNDEFINED_METRIC_MODE", "UNDEFINED_SEARCH_SPACE", "UNRESOLVED_SEARCH_SPACE"), _GOAL)
)
SEARCHER_ADVICE["flaml"] = f"instead of BlendSearch or CFO, {_TREES}"
SCHEDULER_ADVICE = {
    "HyperBandForBOHB": "it works only together with the TuneBOHB searcher, which paceline does not have. The same "
    "idea, a model that guides the search and early stopping of bad trials, is TuneConfig("
    "search_alg=OptunaSearch(), scheduler=HyperBandScheduler()), or ASHAScheduler() instead of the latter"
}


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """The searcher of that name: "random", "optuna", "hyperopt", or one that an installed package registers as an entry
    point of `paceline.searchers`; keywords are its arguments."""
    name = search_alg.lower() if isinstance(search_alg, str) else search_alg
    if name in _SEARCHERS:
        module, searcher = _SEARCHERS[name]
        made = getattr(importlib.import_module(f"paceline.tune.search.{module}"), searcher)(**kwargs)
        assert isinstance(made, Searcher)
        return made
    return checked_made(_registered_searcher(search_alg)(**kwargs), Searcher, "searchers", search_alg)


def _registered_searcher(search_alg: str) -> Any:
    """What a package registers by a name that is not one of ours, or an error that says what there is."""
    name = search_alg.lower() if isinstance(search_alg, str) else search_alg
    if name in ELSEWHERE:
        raise ImportError(advice_for(ELSEWHERE[name][0]))
    if (found := plugin("searchers", str(search_alg))) is not None:
        return found
    known = [*_SEARCHERS, *plugin_names("searchers")]
    raise ConfigError(f"There is no searcher {search_alg!r}{near_miss(str(search_alg), known)}")


def check_names(search_alg: object, scheduler: object) -> None:
    """Raise if one of them is the name of something that does not exist; what exists is not made yet."""
    if isinstance(search_alg, str) and search_alg.lower() not in _SEARCHERS:
        _registered_searcher(search_alg)
    if isinstance(scheduler, str) and scheduler.lower() not in _SCHEDULERS:
        _registered_scheduler(scheduler)


def advice_for(searcher: str) -> str:
    """What does the job of a searcher that does not exist here, as a sentence."""
    return f"{searcher} is not part of paceline: {SEARCHER_ADVICE[searcher]}."


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """The scheduler of that short name, such as ``"asha"``, or one that an installed package registers as an entry
    point of `paceline.schedulers`, made with the given arguments."""
    name = scheduler.lower() if isinstance(scheduler, str) else scheduler
    if name not in _SCHEDULERS:
        return checked_made(_registered_scheduler(scheduler)(**kwargs), TrialScheduler, "schedulers", scheduler)
    made = getattr(importlib.import_module("paceline.tune.schedulers"), _SCHEDULERS[name])(**kwargs)
    assert isinstance(made, TrialScheduler)
    return made


def _registered_scheduler(scheduler: str) -> Any:
    name = str(scheduler).lower()
    if name == "hb_bohb":
        raise ImportError(f"There is no scheduler {scheduler!r}: {SCHEDULER_ADVICE['HyperBandForBOHB']}.")
    if (found := plugin("schedulers", str(scheduler))) is not None:
        return found
    known = [*_SCHEDULERS, *plugin_names("schedulers")]
    raise ConfigError(f"There is no scheduler {scheduler!r}{near_miss(name, known)}")
