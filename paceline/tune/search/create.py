"""Searchers by name."""

from __future__ import annotations

import importlib
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.air.plugins import checked_made, plugin, plugin_names
from paceline.tune.search.absent import ELSEWHERE, advice_for
from paceline.tune.search.searcher import Searcher

_OURS = {
    "random": ("basic_variant", "BasicVariantGenerator"),
    "variant_generator": ("basic_variant", "BasicVariantGenerator"),
    "optuna": ("optuna", "OptunaSearch"),
    "hyperopt": ("hyperopt", "HyperOptSearch"),
}


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """The searcher of that name: "random", "optuna", "hyperopt", or one that an installed package registers as an entry
    point of `paceline.searchers`; keywords are its arguments."""
    name = search_alg.lower() if isinstance(search_alg, str) else search_alg
    if name in _OURS:
        module, searcher = _OURS[name]
        made = getattr(importlib.import_module(f"paceline.tune.search.{module}"), searcher)(**kwargs)
        assert isinstance(made, Searcher)
        return made
    if name in ELSEWHERE:
        raise ImportError(advice_for(ELSEWHERE[name][0]))
    if (found := plugin("searchers", str(search_alg))) is not None:
        return checked_made(found(**kwargs), Searcher, "searchers", search_alg)
    known = [*_OURS, *plugin_names("searchers")]
    raise ConfigError(f"There is no searcher {search_alg!r}{near_miss(str(search_alg), known)}")
