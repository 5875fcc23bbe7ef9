"""Lets a searcher have only so many trials at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.air.checks import check_bool, whole_number
from paceline.tune.search.searcher import Metric, Mode, Searcher, Suggestion, tell_complete
from paceline.tune.search.wrapping_searcher import WrappingSearcher


class ConcurrencyLimiter(WrappingSearcher):
    """Asks `searcher` for a configuration only while fewer than `max_concurrent` of its trials are unfinished.

    A searcher that learns from results suggests better when fewer results are outstanding.

    batch: hold results back until the whole batch of `max_concurrent` trials has finished,
    then tell all of them and start the next batch.
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        super().__init__(searcher)
        check_bool(batch, "batch")
        self.max_concurrent = whole_number(max_concurrent, "max_concurrent", least=1)
        self.batch = batch
        self._unfinished: set[str] = set()
        self._held_back: dict[str, tuple[Mapping[str, Any] | None, bool]] = {}

    @property
    def wants_results(self) -> bool:
        return self.searcher.wants_results

    def set_search_properties(self, metric: Metric, mode: Mode, config: dict[str, Any], **spec: Any) -> bool:
        self.searcher.set_max_concurrency(self.max_concurrent)
        return super().set_search_properties(metric, mode, config, **spec)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """The smaller of the two limits holds."""
        self.max_concurrent = min(self.max_concurrent, max_concurrent)
        return True

    def suggest(self, trial_id: str) -> Suggestion:
        if len(self._unfinished) + len(self._held_back) >= self.max_concurrent:
            return None
        suggestion = self.searcher.suggest(trial_id)
        if isinstance(suggestion, dict):
            self._unfinished.add(trial_id)
        elif self._batch_is_short:
            # A batch that the searcher cannot fill would never be told, and the searcher never go on.
            self._tell_batch()
            return self.suggest(trial_id)
        return suggestion

    @property
    def _batch_is_short(self) -> bool:
        """Results are held back, and none of the batch is under way."""
        return bool(self._held_back) and not self._unfinished

    def remember(self, trial_id: str, config: dict[str, Any]) -> None:
        if self._batch_is_short and self.suggests_again:
            super().remember(trial_id, config)  # by way of `suggest`: it may have told the batch to get this one
            return
        self.searcher.remember(trial_id, config)
        self._unfinished.add(trial_id)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        if trial_id not in self._unfinished:
            return
        self._unfinished.remove(trial_id)
        if not self.batch:
            tell_complete(self.searcher, trial_id, result, error)
            return
        self._held_back[trial_id] = (result, error)
        if len(self._held_back) >= self.max_concurrent:
            self._tell_batch()

    def _tell_batch(self) -> None:
        held_back, self._held_back = self._held_back, {}
        for trial_id, (result, error) in held_back.items():
            tell_complete(self.searcher, trial_id, result, error)

    def save(self, path: str) -> None:
        """Save the searcher, and beside it which of its trials are unfinished."""
        self.searcher.save(path)
        state = {"unfinished": sorted(self._unfinished), "held_back": self._held_back}
        Path(f"{path}.limiter").write_text(json.dumps(state), encoding="utf-8")

    def restore(self, path: str) -> None:
        self.searcher.restore(path)
        state = json.loads(Path(f"{path}.limiter").read_text(encoding="utf-8"))
        self._unfinished = set(state["unfinished"])
        self._held_back = {trial_id: (result, error) for trial_id, (result, error) in state["held_back"].items()}
