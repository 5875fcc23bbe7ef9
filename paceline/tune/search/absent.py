"""What to use instead of Ray Tune's searchers that do not exist here."""

from __future__ import annotations

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

ADVICE = dict(ELSEWHERE.values())
"""What to write instead of a searcher, by its class and by the module that has it in Ray Tune."""
for _module, (_searcher, _advice) in ELSEWHERE.items():
    ADVICE[_module] = f"instead of {_searcher}, {_advice}"
_GOAL = "raise paceline.air.errors.ConfigError with a message of your own"
ADVICE.update(dict.fromkeys(("UNDEFINED_METRIC_MODE", "UNDEFINED_SEARCH_SPACE", "UNRESOLVED_SEARCH_SPACE"), _GOAL))
ADVICE["flaml"] = f"instead of BlendSearch or CFO, {_TREES}"


def advice_for(searcher: str) -> str:
    """What does the job of a searcher that does not exist here, as a sentence."""
    return f"{searcher} is not part of paceline: {ADVICE[searcher]}."
