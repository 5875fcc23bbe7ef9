"""The contract between an experiment and whatever proposes its configurations.

The experiment calls `set_search_properties` once, then `set_seed` with a seed it has
recorded, then `suggest` whenever a trial can start. Each trial that was suggested ends in
exactly one `on_trial_complete`. Calls come from one thread, one at a time.

A searcher is deterministic: what it suggests depends on its arguments, its seed and the
calls so far, on nothing else. An interrupted experiment is continued by making the same
calls again, with `remember` in the place of `suggest`.

`paceline.testing.searcher_contract` has this contract as a test class for searchers of your own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from paceline.air.absent import advise
from paceline.air.checks import Call, keyword_call, warn_at_users_line
from paceline.air.errors import ConfigError, RestoreError
from paceline.air.secrets import masked
from paceline.tune.search.space import values_in
from paceline.tune.search.variants import Found

Metric = str | list[str] | None
Mode = str | list[str] | None
Suggestion = dict[str, Any] | Literal["FINISHED"] | None
"""The searched parameters, nested as in the search space; None: not now; FINISHED: never again."""


class Searcher:
    """Proposes configurations. Subclasses write `suggest` and `on_trial_complete`."""

    FINISHED: Literal["FINISHED"] = "FINISHED"

    needs_metric = False
    """Whether it cannot search without a metric; where a mode is given and no metric, that is `_metric`."""

    made_with: tuple[tuple[Any, ...], dict[str, Any]]
    """The arguments it was made with, so that a restore can make it again."""

    _metric: Metric
    _mode: Mode
    _warned: set[str]

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        made = super().__new__(cls)
        made.made_with = args, keywords
        # A class of the user's own need not call __init__ of this one.
        made._metric = made._mode = None
        made._warned = set()
        return made

    def __init__(self, metric: str | Sequence[str] | None = None, mode: str | Sequence[str] | None = None) -> None:
        self._metric, self._mode = checked_goal(metric, mode)

    @property
    def metric(self) -> Metric:
        """The reported value that is searched for; a list where there are several goals."""
        return self._metric

    @property
    def mode(self) -> Mode:
        """ "min" or "max"; a list where there are several goals."""
        return self._mode

    # Set up by the experiment

    def set_search_properties(self, metric: Metric, mode: Mode, config: dict[str, Any], **spec: Any) -> bool:
        """Take what TuneConfig and param_space say; `spec` has num_samples.

        False refuses: the searcher was built with other settings that contradict these.
        """
        return self._adopt_goal(metric, mode)

    def _adopt_goal(self, metric: Metric, mode: Mode) -> bool:
        """Take metric and mode where none were given; False if they contradict those that were."""
        if isinstance(self._metric, list) and isinstance(metric, str):  # of several goals, the one to sort by
            modes = dict(zip(self._metric, self._mode or [], strict=True))
            return metric in modes and mode in (None, modes[metric])
        if metric is not None and self._metric not in (None, metric):
            return False
        if mode is not None and self._mode not in (None, mode):
            return False
        self._metric, self._mode = checked_goal(self._metric or metric, self._mode or mode)
        return True

    def set_seed(self, seed: int) -> None:
        """The seed to use if the user gave none. Searchers that draw nothing at random ignore it."""

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """True if the searcher itself will keep to this many unfinished suggestions."""
        return False

    @property
    def total_samples(self) -> int | None:
        """How many suggestions there will be; None: as many as num_samples asks for."""
        return None

    # Ask and tell

    def suggest(self, trial_id: str) -> Suggestion:
        """The next configuration, for the trial of that name."""
        raise NotImplementedError(f"{type(self).__name__} must define suggest(self, trial_id).")

    knows_more = False
    """It was told of points evaluated elsewhere, so its arguments alone do not make it again."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A row of a running trial. Define it only if rows before the last one matter: see `wants_results`."""

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """A trial has ended with `result` as its last row, by itself or because it was stopped.

        `error`: it failed. `result` is None where it never reported.
        """

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float | Sequence[float],
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a configuration that was evaluated elsewhere."""
        raise NotImplementedError(f"{type(self).__name__} cannot be given points that were evaluated elsewhere.")

    # Continuing an interrupted search

    @property
    def wants_results(self) -> bool:
        """Whether on_trial_result does something: then every row is kept, to be told again on restore."""
        return type(self).on_trial_result is not Searcher.on_trial_result

    @property
    def suggests_again(self) -> bool:
        """Whether `remember` makes the suggestion again, and does not only note it."""
        return type(self).remember is Searcher.remember

    def remember(self, trial_id: str, config: dict[str, Any]) -> None:
        """Be as if `suggest(trial_id)` had just returned `config`.

        By default the suggestion is made again, which is right for any deterministic searcher.
        """
        suggestion = self.suggest(trial_id)
        if not isinstance(suggestion, dict) or not _contains(config, suggestion):
            self._warn_once(
                "replay",
                f"{type(self).__name__} does not repeat itself: for trial {trial_id} it suggested {masked(config)!r} "
                f"before the interruption and {masked(suggestion)!r} now. The search continues, but from a different "
                "state than before the interruption. Seed it, or define remember().",
            )

    def save(self, path: str) -> None:
        """Write the state of the search to a file."""
        raise NotImplementedError(f"{type(self).__name__} does not define save(self, path).")

    def restore(self, path: str) -> None:
        """Take the state that `save` wrote; the searcher was built with the same arguments."""
        raise NotImplementedError(f"{type(self).__name__} does not define restore(self, path).")

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Write the state of the search to a file in a directory."""
        directory = Path(checkpoint_dir)
        directory.mkdir(parents=True, exist_ok=True)
        self.save(str(directory / f"searcher-state-{session_str}.state"))

    def restore_from_dir(self, checkpoint_dir: str) -> None:
        """Take the state that `save_to_dir` wrote last to the directory."""
        files = list(Path(checkpoint_dir).glob("searcher-state-*.state"))
        if not files:
            raise RestoreError(f"{checkpoint_dir} has no searcher-state-*.state, which save_to_dir() writes.")
        self.restore(str(max(files, key=lambda file: file.stat().st_mtime_ns)))

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warn_at_users_line(message)


def introduce(searcher: Searcher, metric: Metric, mode: Mode, config: dict[str, Any], **spec: Any) -> bool:
    """Call its set_search_properties(), which may have been written without `**spec`."""
    arguments = {"metric": metric, "mode": mode, "config": config, **spec}
    return bool(keyword_call(searcher.set_search_properties, tuple(arguments), least=3)(arguments))


def completion_call(searcher: Searcher) -> Call:
    """How to call its on_trial_complete(), which may have been written without `error`, or without `result`."""
    return keyword_call(searcher.on_trial_complete, ("trial_id", "result", "error"), least=1)


def report_completion(
    searcher: Searcher, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
) -> None:
    """Tell a searcher, maybe one of the user's own, that a trial has ended."""
    completion_call(searcher)({"trial_id": trial_id, "result": result, "error": error})


def checked_goal(metric: str | Sequence[str] | None, mode: str | Sequence[str] | None) -> tuple[Metric, Mode]:
    """Metric and mode as given: one of each, or two lists of the same length."""
    if metric is None or isinstance(metric, str):
        if mode not in (None, "min", "max"):
            raise ConfigError(f'mode is {mode!r}: use "min" or "max".')
        return metric, mode
    metrics = list(metric)
    modes = [mode] * len(metrics) if isinstance(mode, str) else list(mode or [])
    if not metrics or len(modes) != len(metrics) or any(each not in ("min", "max") for each in modes):
        raise ConfigError(f'mode is {mode!r} for the metrics {metrics!r}: give one "min" or "max" for each metric.')
    if len(set(metrics)) != len(metrics):
        raise ConfigError(f"metric is {metrics!r}: each may be named once.")
    return metrics, modes


def checked_points(points: Any) -> list[Mapping[str, Any]]:
    """The `points_to_evaluate` of a searcher."""
    if points is None:
        return []
    if not isinstance(points, Sequence) or not all(isinstance(point, Mapping) for point in points):
        raise ConfigError(f"points_to_evaluate is {points!r}: give a list of dicts, such as [{{'lr': 0.1}}].")
    return list(points)


def _contains(config: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Whether every value of `part` is in `config`; it may be nested or have a/b keys."""
    return not values_in(Found(config), part)


advise(__name__, {}, {"ConcurrencyLimiter": "paceline.tune.search.wrapping_searcher"})
