"""Names of Ray Tune's search from before searchers were the only way to write one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.air.errors import ConfigError
from paceline.tune.search.searcher import Searcher, Suggestion, report_completion
from paceline.tune.search.wrapping_searcher import WrappingSearcher

__all__ = ["SearchAlgorithm", "SearchGenerator"]


class SearchAlgorithm(Searcher):
    """A Searcher. An algorithm that makes trials itself is rejected: here the search makes them."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "next_trial" in vars(cls):
            raise ConfigError(
                f"{cls.__name__} defines next_trial(): derive it from paceline.tune.search.Searcher, and define "
                "suggest(self, trial_id), which returns a configuration, and on_trial_complete()."
            )


class SearchGenerator(WrappingSearcher, SearchAlgorithm):
    """Stands around a searcher, and changes nothing: pass the searcher itself."""

    @property
    def wants_results(self) -> bool:
        return self.searcher.wants_results

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        return self.searcher.set_max_concurrency(max_concurrent)

    def suggest(self, trial_id: str) -> Suggestion:
        return self.searcher.suggest(trial_id)

    def remember(self, trial_id: str, config: dict[str, Any]) -> None:
        self.searcher.remember(trial_id, config)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        report_completion(self.searcher, trial_id, result, error)

    def save(self, path: str) -> None:
        self.searcher.save(path)

    def restore(self, path: str) -> None:
        self.searcher.restore(path)
