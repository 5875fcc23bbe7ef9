"""What searchers that learn by a library's model have in common: goal, seed, history, saving.

The history of a search is the sequence of its calls, as plain values:

- ``suggest``: a trial was given these parameters;
- ``complete``: a trial ended with these values of the metrics, or with none;
- ``point``: a configuration that was evaluated elsewhere.

Parameters are kept *encoded*: by name ("a/b" where nested), as values that the model and a
JSON file can hold. The random draws of suggestion number n are seeded by (seed, n). So the
history is all there is to the state, and telling it again to a new searcher makes it the same.
"""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from paceline.air.checks import is_number, whole_number
from paceline.air.errors import ConfigError, RestoreError
from paceline.air.metrics import nested_get
from paceline.tune.search.searcher import Metric, Mode, Searcher, Suggestion, checked_points
from paceline.tune.search.variants import find

Encoded = dict[str, Any]
Space = TypeVar("Space")


class ModelSearcher(Searcher, Generic[Space]):
    """Subclasses give the model: `_read_space`, `_build`, `_ask`, `_recall`, `_tell`, `_learn`, and the encoding.

    `Space` is what a search space is for the library.
    """

    needs_metric = True

    def __init__(
        self,
        space: Any,
        metric: str | Sequence[str] | None,
        mode: str | Sequence[str] | None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None,
        seed: int | None,
    ) -> None:
        super().__init__(metric, mode)
        self._own_space = space
        self._read: Space | None = None
        self._points = checked_points(points_to_evaluate)
        self._users_seed = None if seed is None else whole_number(seed, "seed", least=0)
        self._seed = self._users_seed
        self._built = False
        self._number = 0
        """Of the next suggestion."""
        self._unfinished: dict[str, int] = {}
        """The number of each suggestion that is not complete, by trial."""
        self._calls: list[list[Any]] = []
        self._elsewhere: list[tuple[Mapping[str, Any], list[float] | None]] = []
        """Points that were given before the space was known."""

    # What a model has to do

    @abstractmethod
    def _read_space(self, given: Any) -> Space:
        """The library's form of the space that the searcher, or the Tuner as param_space, was given."""

    @abstractmethod
    def _build(self) -> None:
        """Make an empty model of the space; called once metric, mode, space and seed are known."""

    @abstractmethod
    def _ask(self, number: int) -> tuple[Encoded, dict[str, Any]] | None:
        """New parameters, encoded and as a suggestion; `_point` fixes some of them. None: the space is used up."""

    @abstractmethod
    def _recall(self, number: int, encoded: Encoded) -> None:
        """Be as if `_ask(number)` had given these parameters."""

    @abstractmethod
    def _tell(self, number: int, values: list[float] | None) -> None:
        """Suggestion `number` has reached these values; None: it failed."""

    @abstractmethod
    def _learn(self, encoded: Encoded, values: list[float] | None) -> None:
        """A point that was evaluated elsewhere."""

    @abstractmethod
    def _encoded(self, config: Mapping[str, Any]) -> Encoded | None:
        """The parameters in a configuration; None where they cannot be told from it."""

    # The searcher's contract

    def set_search_properties(self, metric: Metric, mode: Mode, config: dict[str, Any], **spec: Any) -> bool:
        if not self._adopt_goal(metric, mode):
            return False
        if self._own_space is not None:
            found = find(config)
            return not found.domains and not found.grids
        self._read = self._read_space(config)
        return True

    def set_seed(self, seed: int) -> None:
        if self._users_seed is None:
            self._seed = whole_number(seed, "seed", least=0)

    def suggest(self, trial_id: str) -> Suggestion:
        self._prepare()
        asked = self._ask(self._number)
        if asked is None:
            return self.FINISHED
        encoded, suggestion = asked
        self._note_suggestion(trial_id, encoded)
        return suggestion

    def remember(self, trial_id: str, config: dict[str, Any]) -> None:
        self._prepare()
        encoded = self._encoded(config)
        if encoded is None:
            super().remember(trial_id, config)
            return
        self._recall(self._number, encoded)
        self._note_suggestion(trial_id, encoded)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        number = self._unfinished.pop(trial_id, None)
        if number is None:
            return
        values = None if error else self._goal_values(trial_id, result)
        self._tell(number, values)
        self._calls.append(["complete", trial_id, values])

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float | Sequence[float],
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a configuration that was evaluated elsewhere.

        One that was stopped early (`pruned`) counts with the value it had then, as for trials
        of the experiment itself; `intermediate_values` are not used.
        """
        self.knows_more = True
        self._take_point(parameters, None if error else point_values(value))

    def _take_point(self, parameters: Mapping[str, Any], values: list[float] | None) -> None:
        if self._built:
            self._learn_point(parameters, values)
        else:
            self._elsewhere.append((parameters, values))

    # Saving

    def save(self, path: str) -> None:
        """Write the history as JSON lines."""
        self._prepare()
        lines = [{"searcher": type(self).__name__, "seed": self._seed}, *self._calls]
        try:
            text = "".join(json.dumps(line) + "\n" for line in lines)
        except TypeError as problem:
            raise ConfigError(
                f"This {type(self).__name__} cannot be saved: a parameter's value is not plain data ({problem}). "
                "Search for a name or a number and look the object up in the trainable."
            ) from None
        Path(path).write_text(text, encoding="utf-8")

    def restore(self, path: str) -> None:
        """Tell a saved history to this searcher, which has the same arguments as the saved one."""
        if self._number:
            raise RestoreError(f"This {type(self).__name__} has made suggestions already: restore into a new one.")
        head, *calls = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        if head["searcher"] != type(self).__name__:
            raise RestoreError(f"{path} was saved by {head['searcher']}, not by {type(self).__name__}.")
        self._users_seed = self._seed = head["seed"]
        self._elsewhere = []  # they are in the history
        self._prepare()
        for call, *arguments in calls:
            if call == "suggest":
                trial_id, encoded = arguments
                self._recall(self._number, encoded)
                self._note_suggestion(trial_id, encoded)
            elif call == "complete":
                trial_id, values = arguments
                self._tell(self._unfinished.pop(trial_id), values)
                self._calls.append([call, *arguments])
            else:
                encoded, values = arguments
                self._learn(encoded, values)
                self._calls.append([call, *arguments])

    # Inside

    def _prepare(self) -> None:
        """Build the model before its first use."""
        if self._built:
            return
        if self._metric is None or self._mode is None:
            missing = "metric" if self._metric is None else "mode"
            raise ConfigError(
                f"{type(self).__name__} does not know its {missing}: give TuneConfig or the searcher itself "
                'metric="<a reported value>" and mode="min" or "max".'
            )
        if self._read is None:
            if self._own_space is None:
                name = type(self).__name__
                raise ConfigError(f"{name} has no search space: give the Tuner a param_space, or {name}(space=...).")
            self._read = self._read_space(self._own_space)
        if self._seed is None:
            self._seed = random.SystemRandom().getrandbits(31)
        self._build()
        self._built = True
        for parameters, values in self._elsewhere:
            self._learn_point(parameters, values)

    @property
    def _space(self) -> Space:
        assert self._read is not None, "the space is read before the model is used"
        return self._read

    def _point(self, number: int) -> Mapping[str, Any]:
        """What the user wants this suggestion to be, as far as it goes."""
        return self._points[number] if number < len(self._points) else {}

    def _learn_point(self, parameters: Mapping[str, Any], values: list[float] | None) -> None:
        encoded = self._encoded(parameters)
        if encoded is None:
            raise ConfigError(f"The evaluated point {dict(parameters)!r} does not have every parameter of the space.")
        if values is not None and len(values) != len(self._metrics):
            raise ConfigError(f"The evaluated point has {len(values)} value(s) for the metric(s) {self._metrics}.")
        self._learn(encoded, values)
        self._calls.append(["point", encoded, values])

    def _note_suggestion(self, trial_id: str, encoded: Encoded) -> None:
        self._unfinished[trial_id] = self._number
        self._calls.append(["suggest", trial_id, encoded])
        self._number += 1

    @property
    def _metrics(self) -> list[str]:
        return self._metric if isinstance(self._metric, list) else [str(self._metric)]

    @property
    def _modes(self) -> list[str]:
        return self._mode if isinstance(self._mode, list) else [str(self._mode)]

    def _goal_values(self, trial_id: str, result: Mapping[str, Any] | None) -> list[float] | None:
        """What the trial reached; None, with a warning, where that is not a number."""
        values = [nested_get(result or {}, name) for name in self._metrics]
        for name, value in zip(self._metrics, values, strict=True):
            if not _is_orderable(value):
                kind = "the text " if isinstance(value, str) else ""
                found = f"is {kind}{value!r}" if result and value is not None else "is missing"
                self._warn_once(
                    "value",
                    f"Trial {trial_id} counts as failed for {type(self).__name__}, which learns nothing from it: "
                    f"{name!r} {found} in its last row. Later trials like it are not mentioned.",
                )
                return None
        return [float(value) for value in values]


def _is_orderable(value: Any) -> bool:
    """Infinite is as bad or good as it gets; NaN is nothing."""
    return is_number(value) or value in (float("inf"), float("-inf"))


def point_values(value: float | Sequence[float]) -> list[float]:
    values = list(value) if isinstance(value, Sequence) else [value]
    if not all(_is_orderable(each) for each in values):
        raise ConfigError(f"The value of an evaluated point is {value!r}: give a number, or error=True.")
    return [float(each) for each in values]
