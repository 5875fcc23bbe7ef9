"""Names of Ray Tune's search from before searchers were the only way to write one."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from paceline.air.errors import ConfigError
from paceline.testing.searcher_contract import SearcherContract
from paceline.tune.search import (
    BasicVariantGenerator,
    HyperOptSearch,
    SearchAlgorithm,
    Searcher,
    SearchGenerator,
    grid_search,
)
from paceline.tune.search.search_generator import SearchGenerator as ByItsOldPath


class Counting(Searcher):
    def __init__(self) -> None:
        super().__init__("score", "max")
        self.ended: list[str] = []

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"x": trial_id}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.ended.append(trial_id)


@pytest.mark.slow
class TestSearchGenerator(SearcherContract):
    def make(self, metric: str, mode: str, space: dict[str, Any], seed: int | None) -> Searcher:
        searcher = SearchGenerator(HyperOptSearch(random_state_seed=seed, n_initial_points=10))
        assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
        return searcher


def test_a_generator_passes_everything_on() -> None:
    inner = Counting()
    generator = SearchGenerator(inner)
    assert ByItsOldPath is SearchGenerator
    assert isinstance(generator, SearchAlgorithm)
    assert generator.set_search_properties("score", "max", {}, num_samples=2)
    assert generator.suggest("a") == {"x": "a"}
    generator.remember("b", {"x": "b"})
    generator.on_trial_complete("a", {"score": 1})
    assert inner.ended == ["a"]
    assert not generator.wants_results
    assert SearchGenerator(BasicVariantGenerator()).total_samples == BasicVariantGenerator().total_samples


def test_a_searcher_without_the_newer_arguments_can_be_inside() -> None:
    class Short(Searcher):
        ended: ClassVar[list[str]] = []

        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {}

        def on_trial_complete(self, trial_id: str) -> None:  # type: ignore[override]
            self.ended.append(trial_id)

    SearchGenerator(Short("score", "max")).on_trial_complete("a", {"score": 1}, error=False)
    assert Short.ended == ["a"]


def test_an_algorithm_that_makes_trials_itself_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"Mine defines next_trial.*suggest"):

        class Mine(SearchAlgorithm):
            def next_trial(self) -> None: ...


def test_the_grid_is_there_too() -> None:
    assert grid_search([1, 2]) == {"grid_search": [1, 2]}
