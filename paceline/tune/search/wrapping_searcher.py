"""What searchers that stand around another one have in common: they pass on all that they do not change."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.air.checks import check_bool, is_number, whole_number
from paceline.air.constants import TRIAL_INDEX
from paceline.air.errors import ConfigError
from paceline.air.metrics import nested_get
from paceline.tune.search.searcher import Metric, Mode, Searcher, Suggestion, introduce, report_completion


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
            # A batch that the searcher cannot fill would never be reported, and the searcher never continue.
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
            report_completion(self.searcher, trial_id, result, error)
            return
        self._held_back[trial_id] = (result, error)
        if len(self._held_back) >= self.max_concurrent:
            self._tell_batch()

    def _tell_batch(self) -> None:
        held_back, self._held_back = self._held_back, {}
        for trial_id, (result, error) in held_back.items():
            report_completion(self.searcher, trial_id, result, error)

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
            report_completion(self.searcher, group.first_id, error=True)
            return
        means = [sum(column) / len(group.values) for column in zip(*group.values, strict=True)]
        report_completion(self.searcher, group.first_id, dict(zip(self._metrics, means, strict=True)))

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
