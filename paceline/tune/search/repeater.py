"""Evaluates each configuration of a searcher several times, for noisy objectives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.air.checks import check_bool, is_number, whole_number
from paceline.air.constants import TRIAL_INDEX
from paceline.air.errors import ConfigError
from paceline.run.nested import nested_get
from paceline.tune.search.searcher import Metric, Mode, Searcher, Suggestion


@dataclass
class _Group:
    """The trials of one configuration; the first one's id is what the searcher knows."""

    first_id: str
    config: dict[str, Any]
    given: int = 0
    finished: int = 0
    values: list[list[float]] = field(default_factory=list)


class Repeater(Searcher):
    """Runs each suggestion of `searcher` `repeat` times and tells it the mean.

    Repetitions that fail or report no number leave the mean to the others; if all do, the
    suggestion is told as failed. `repeat` trials count as `repeat` samples of num_samples.

    set_index: give the trainable the number of its repetition as ``config["__trial_index__"]``,
    for example to seed with it.
    """

    def __init__(self, searcher: Searcher, repeat: int = 1, set_index: bool = True) -> None:
        if not isinstance(searcher, Searcher):
            raise ConfigError(f"Repeater repeats the suggestions of a Searcher, not {searcher!r}.")
        check_bool(set_index, "set_index")
        super().__init__(searcher.metric, searcher.mode)
        self.searcher = searcher
        self.repeat = whole_number(repeat, "repeat", least=1)
        self.set_index = set_index
        self._current: _Group | None = None
        self._groups: dict[str, _Group] = {}

    @property
    def metric(self) -> Metric:
        return self.searcher.metric

    @property
    def mode(self) -> Mode:
        return self.searcher.mode

    @property
    def total_samples(self) -> int | None:
        inner = self.searcher.total_samples
        return None if inner is None else inner * self.repeat

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return self.searcher.set_search_properties(metric, mode, config, **spec)

    def set_seed(self, seed: int) -> None:
        self.searcher.set_seed(seed)

    @property
    def wants_results(self) -> bool:
        return False  # the searcher learns of means, and a row of one repetition is none

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
            self.searcher.on_trial_complete(group.first_id, None, error=True)
            return
        means = [sum(column) / len(group.values) for column in zip(*group.values, strict=True)]
        self.searcher.on_trial_complete(group.first_id, dict(zip(self._metrics, means, strict=True)))

    @property
    def _metrics(self) -> list[str]:
        metric = self.metric
        return metric if isinstance(metric, list) else [metric] if metric else []

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float | Sequence[float],
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        self.searcher.add_evaluated_point(parameters, value, error, pruned, intermediate_values)

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
