"""Searchers for tests of OptunaSearch."""

from __future__ import annotations

from typing import Any

from paceline.tune.search import OptunaSearch, Searcher
from paceline.tune.search.sample import (
    uniform,
)


def ready(space: dict[str, Any] | None = None, **settings: Any) -> OptunaSearch:
    """A searcher for that param_space."""
    searcher = OptunaSearch(**{"seed": 1, **settings})
    assert searcher.set_search_properties("loss", "min", space or {"x": uniform(0, 1)}, num_samples=10)
    return searcher


def suggested(searcher: Searcher, trial_id: str) -> dict[str, Any]:
    suggestion = searcher.suggest(trial_id)
    assert isinstance(suggestion, dict)
    return suggestion
