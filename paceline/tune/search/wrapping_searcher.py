"""What searchers that stand around another one have in common: they pass on all that they do not change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.air.errors import ConfigError
from paceline.tune.search.searcher import Metric, Mode, Searcher, introduce


class WrappingSearcher(Searcher):
    """Goals, seed and space are those of `searcher`. Subclasses write what is between it and the experiment."""

    def __init__(self, searcher: Searcher) -> None:
        if not isinstance(searcher, Searcher):
            raise ConfigError(f"{type(self).__name__} stands around a Searcher, not {searcher!r}.")
        super().__init__(searcher.metric, searcher.mode)
        self.searcher = searcher
        self.needs_metric = searcher.needs_metric

    @property
    def metric(self) -> Metric:
        return self.searcher.metric

    @property
    def mode(self) -> Mode:
        return self.searcher.mode

    @property
    def suggests_again(self) -> bool:
        return self.searcher.suggests_again

    @property
    def total_samples(self) -> int | None:
        return self.searcher.total_samples

    def set_search_properties(self, metric: Metric, mode: Mode, config: dict[str, Any], **spec: Any) -> bool:
        return introduce(self.searcher, metric, mode, config, **spec)

    def set_seed(self, seed: int) -> None:
        self.searcher.set_seed(seed)

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float | Sequence[float],
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        self.searcher.add_evaluated_point(parameters, value, error, pruned, intermediate_values)
