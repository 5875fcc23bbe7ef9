"""What a search has found out: its space, the best value over time, what matters, and the trials that nothing beats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import UNSET, Struct, UnsetType

from paceline.air.errors import PacelineError
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import RemoteJournal
from paceline.storage.run_dir import resolve_storage, search_journal
from paceline.tune.experiment.records import FORMAT, SearchStarted
from paceline.tune.experiment.summary import ExperimentSummary, TrialSummary
from paceline.tune.experiment.summary import score as score
from paceline.tune.search.domains import Domain
from paceline.tune.search.space import find, from_description

_MOST_VALUES = 100


class Parameter(Struct):
    """What a search chooses values of a parameter from."""

    kind: Literal["float", "int", "choice"]
    log: bool = False
    low: float | UnsetType = UNSET
    high: float | UnsetType = UNSET
    values: list[Any] | UnsetType = UNSET


def space_of(search: ExperimentSummary, filesystem: Any = None) -> dict[str, Parameter]:
    """The parameters of a search by names like "a/b": as its space says, or as the trials' values suggest."""
    tried: dict[str, list[Any]] = {}
    for trial in search.trials:
        for name, value in trial.params.items():
            tried.setdefault(name, []).append(value)
    declared = _declared(search, filesystem)
    return {name: declared.get(name) or _suggested(values) for name, values in tried.items()}


def _declared(search: ExperimentSummary, filesystem: Any) -> dict[str, Parameter]:
    try:
        started = _first_record(search, filesystem)
        found = find(from_description(started.space) if isinstance(started, SearchStarted) else None)
    except (PacelineError, OSError):  # it has another form in this version, or is gone
        return {}
    choices = {path: list(found.options(path) or ()) for path in found.texts}
    return {
        text: parameter
        for path, text in found.texts.items()
        if (parameter := _choice(choices[path]) if choices[path] else _of_domain(found.domains.get(path))) is not None
    }


def _first_record(search: ExperimentSummary, filesystem: Any) -> Any:
    place, name = resolve_storage(search.path), search_journal(search.id[:5])
    if isinstance(place, Path):
        return next(FORMAT.read(place / name), None)
    records, _ = FORMAT.follow(RemoteJournal(FsspecFilesystem(place, filesystem), name))
    return records[0] if records else None


def _of_domain(domain: Domain | None) -> Parameter | None:
    if domain is None:
        return None
    maker, arguments = domain.as_call()
    if len(arguments) < 2 or "randn" in maker or maker == "sample_from":
        return None
    low, high = arguments[:2]
    return Parameter("int" if "randint" in maker else "float", "log" in maker, low, high)


def _suggested(values: list[Any]) -> Parameter:
    """The smallest set that holds the values."""
    from paceline.tune.plots import by_magnitude

    if not all(isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each) for each in values):
        return _choice(values)
    kind: Literal["int", "float"] = "int" if all(isinstance(each, int) for each in values) else "float"
    return Parameter(kind, by_magnitude(values), min(values), max(values))


def _choice(values: Sequence[Any]) -> Parameter:
    by_text = {repr(value): value for value in values}
    return Parameter("choice", values=list(by_text.values())[:_MOST_VALUES])


def best_so_far(search: ExperimentSummary) -> list[tuple[float, float, TrialSummary]]:
    """(time, value, trial) whenever a trial ended with a better value than all before it."""
    if not isinstance(search.metric, str) or search.mode not in ("min", "max"):
        return []
    sign = 1.0 if search.mode == "max" else -1.0
    ended = sorted((trial.ended, trial.number, trial) for trial in search.trials if trial.ended is not None)
    steps: list[tuple[float, float, TrialSummary]] = []
    for moment, _, trial in ended:
        value = score(trial, search.metric)
        if value is not None and (not steps or sign * value > sign * steps[-1][1]):
            steps.append((moment, value, trial))
    return steps


def unbeaten(search: ExperimentSummary) -> list[TrialSummary]:
    """Of a search with several metrics: the trials that no other one beats in all of them (the Pareto front)."""
    metrics, modes = search.metric, search.mode
    if not isinstance(metrics, list) or len(metrics) < 2:
        return []
    signs = [-1.0 if mode == "max" else 1.0 for mode in (modes if isinstance(modes, list) else [modes] * len(metrics))]
    scored = [(trial, [score(trial, metric) for metric in metrics]) for trial in search.trials]
    complete = [(trial, values) for trial, values in scored if None not in values]
    if not complete:
        return []
    costs = np.array([values for _, values in complete], np.float64) * signs
    left, front = np.lexsort(costs.T[::-1]), list[int]()
    while left.size:  # the first of those that are left cannot be beaten; it removes all that it beats
        first, left = int(left[0]), left[1:]
        front.append(first)
        left = left[(costs[left] < costs[first]).any(axis=1) | (costs[left] == costs[first]).all(axis=1)]
    return [complete[place][0] for place in sorted(front)]
