"""Evaluates each configuration of a searcher several times, for noisy objectives."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.air.checks import check_bool, is_number, whole_number
from paceline.air.constants import TRIAL_INDEX
from paceline.air.errors import ConfigError
from paceline.run.nested import nested_get
from paceline.tune.search.searcher import Metric, Mode, Searcher, Suggestion, tell_complete
from paceline.tune.search.wrapping_searcher import WrappingSearcher


@dataclass
class _Group:
    """The trials of one configuration; the first one's id is what the searcher knows."""

    first_id: str
    config: dict[str, Any]
    given: int = 0
    finished: int = 0
    values: list[list[float]] = field(default_factory=list)


class Repeater(WrappingSearcher):
    """Runs each suggestion of `searcher` `repeat` times and tells it the mean.

    Repetitions that fail or report no number leave the mean to the others; if all do, the
    suggestion is told as failed. The searcher learns of means, so it is not shown the rows of a
    repetition. `repeat` trials count as `repeat` samples of num_samples.

    set_index: give the trainable the number of its repetition as ``config["__trial_index__"]``,
    for example to seed with it.
    """

    def __init__(self, searcher: Searcher, repeat: int = 1, set_index: bool = True) -> None:
        super().__init__(searcher)
        check_bool(set_index, "set_index")
        self.repeat = whole_number(repeat, "repeat", least=1)
        self.set_index = set_index
        self._current: _Group | None = None
        self._groups: dict[str, _Group] = {}

    @property
    def total_samples(self) -> int | None:
        inner = self.searcher.total_samples
        return None if inner is None else inner * self.repeat

    def set_search_properties(self, metric: Metric, mode: Mode, config: dict[str, Any], **spec: Any) -> bool:
        samples = spec.get("num_samples", 1)
        suggestions = samples if samples < 0 else math.ceil(samples / self.repeat)
        if not super().set_search_properties(metric, mode, config, **{**spec, "num_samples": suggestions}):
            return False
        left_over = samples % self.repeat if samples > 0 else 0
        if left_over and self.total_samples is None:
            self._warn_once(
                "num_samples",
                f"num_samples={samples} is not a multiple of Repeater's repeat={self.repeat}: the last suggestion is "
                f"run {left_over} time(s) only, and the searcher is not told of it. Use num_samples="
                f"{suggestions * self.repeat}.",
            )
        return True

    def suggest(self, trial_id: str) -> Suggestion:
        if self._current is None:
            suggestion = self.searcher.suggest(trial_id)
            if not isinstance(suggestion, dict):
                return suggestion
            self._current = _Group(trial_id, suggestion)
        return self._repetition(trial_id, self._current)

    def remember(self, trial_id: str, config: dict[str, Any]) -> None:
        if self._current is None:
            config = {name: value for name, value in config.items() if name != TRIAL_INDEX}
            self.searcher.remember(trial_id, config)
            self._current = _Group(trial_id, config)
        self._repetition(trial_id, self._current)

    def _repetition(self, trial_id: str, group: _Group) -> dict[str, Any]:
        config = dict(group.config)
        if self.set_index:
            config[TRIAL_INDEX] = group.given
        self._groups[trial_id] = group
        group.given += 1
        if group.given == self.repeat:
            self._current = None
        return config

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        group = self._groups.pop(trial_id, None)
        if group is None:
            return
        group.finished += 1
        values = [nested_get(result or {}, name) for name in self._metrics]
        if not error and all(is_number(value) for value in values):
            group.values.append([float(value) for value in values])
        if group.finished == self.repeat:
            self._tell(group)

    def _tell(self, group: _Group) -> None:
        if not group.values:
            tell_complete(self.searcher, group.first_id, error=True)
            return
        means = [sum(column) / len(group.values) for column in zip(*group.values, strict=True)]
        tell_complete(self.searcher, group.first_id, dict(zip(self._metrics, means, strict=True)))

    @property
    def _metrics(self) -> list[str]:
        metric = self.metric
        return metric if isinstance(metric, list) else [metric] if metric else []

    def save(self, path: str) -> None:
        """Save the searcher, and beside it which repetitions are under way."""
        self.searcher.save(path)
        groups = {group.first_id: group for group in [*self._groups.values(), *filter(None, [self._current])]}
        state = {
            "groups": [asdict(group) for group in groups.values()],
            "current": self._current and self._current.first_id,
            "unfinished": {trial_id: group.first_id for trial_id, group in self._groups.items()},
        }
        try:
            text = json.dumps(state)
        except TypeError as problem:
            raise ConfigError(
                f"This Repeater cannot be saved: a configuration is not plain data ({problem})."
            ) from None
        Path(f"{path}.repeater").write_text(text, encoding="utf-8")

    def restore(self, path: str) -> None:
        self.searcher.restore(path)
        state = json.loads(Path(f"{path}.repeater").read_text(encoding="utf-8"))
        groups = {group["first_id"]: _Group(**group) for group in state["groups"]}
        self._current = groups[state["current"]] if state["current"] else None
        self._groups = {trial_id: groups[first_id] for trial_id, first_id in state["unfinished"].items()}
