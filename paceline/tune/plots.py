"""Plots of a search, drawn by Optuna from what the trials chose and reached.

Optuna plots its own studies, so one is built from the observations. The search space is inferred from the
values that were tried: numbers span the range that was seen, everything else is a choice, shown by its text.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

PlotKind = Literal["optimization_history", "parallel_coordinates", "param_importances", "slice", "contour"]
_INTERACTIVE = (".html",)
_STILL = (".png", ".svg", ".pdf")
_MOST_TEXT = 60
_LOG_FROM = 100.0
"""A range in which the largest value is so many times the smallest may have been searched by magnitude."""
_EVALUATOR_SEED = 0
_MOST_FOR_IMPORTANCES = 1000
"""The evaluation takes some 10 ms per trial, and gains little from more of them."""


@dataclass(frozen=True)
class Observation:
    """One trial as a plot sees it."""

    params: dict[str, Any]
    """What the search chose, by paths such as "a/b"."""
    value: float | None
    """A finite number; None for a trial that has none, which is counted and not drawn."""


def save_plot(
    kind: PlotKind,
    path: Path,
    observations: Sequence[Observation],
    *,
    metric: str,
    mode: str,
    params: Sequence[str] | None,
) -> Path:
    """Draw a plot into a file, whose suffix says how; return its path."""
    suffix = path.suffix.lower()
    if suffix not in _INTERACTIVE + _STILL:
        raise ConfigError(
            f"{path.name!r} does not end in one of {', '.join(_INTERACTIVE + _STILL)}, which plots can be."
        )
    chosen = _chosen_params(observations, params, kind)
    _check_enough_to_draw(kind, observations, chosen)
    if kind == "param_importances":
        observations = evenly(observations, _MOST_FOR_IMPORTANCES)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _named_extra(), _quiet():
        study = study_of(observations, mode)
        if suffix in _INTERACTIVE:
            _draw_interactive(kind, study, path, metric, chosen)
        else:
            _draw_still(kind, study, path, metric, chosen)
    return path


def importances(observations: Sequence[Observation], mode: str, most: int = _MOST_FOR_IMPORTANCES) -> dict[str, float]:
    """How much of the metric's variance each parameter explains, from 0 to 1, the largest first."""
    _check_enough_to_draw("param_importances", observations, _chosen_params(observations, None, "param_importances"))
    with _named_extra(), _quiet():
        from optuna.importance import FanovaImportanceEvaluator, get_param_importances

        evaluator = FanovaImportanceEvaluator(seed=_EVALUATOR_SEED)
        found = get_param_importances(study_of(evenly(observations, most), mode), evaluator=evaluator)
    return {name: float(value) for name, value in found.items()}


def _chosen_params(
    observations: Sequence[Observation], asked: Sequence[str] | None, kind: PlotKind
) -> list[str] | None:
    """The full names of the asked parameters; the last part of a path will do where it is unique."""
    known = list(dict.fromkeys(name for observation in observations for name in observation.params))
    if not known and kind != "optimization_history":
        raise ConfigError("No trial has a parameter that a search chose, so there is nothing to plot the metric over.")
    if asked is None:
        return None
    if isinstance(asked, str):
        raise ConfigError(f"params is the text {asked!r}: give a list of names, [{asked!r}].")
    return [_full_name(name, known) for name in asked]


def _check_enough_to_draw(kind: PlotKind, observations: Sequence[Observation], chosen: list[str] | None) -> None:
    """Refuse what would give an empty picture."""
    drawn = [each for each in observations if each.value is not None]
    if kind == "contour":
        names = chosen or {name for each in drawn for name in each.params}
        if len(set(names)) < 2:
            raise ConfigError(f"A contour plot needs two parameters or more, here is {', '.join(names)} only.")
    if kind == "param_importances":
        if len({each.value for each in drawn}) < 2:
            raise ConfigError(f"Importances need trials that differ in the metric; {len(drawn)} trial(s) do not.")
        if chosen is None and not set.intersection(*(set(each.params) for each in drawn)):
            raise ConfigError("No parameter was searched by every trial. Say which ones to compare with params=[...].")


def evenly(observations: Sequence[Observation], most: int) -> list[Observation]:
    """At most so many of the trials that can be drawn, early and late ones alike."""
    drawn = [each for each in observations if each.value is not None]
    return [drawn[number * len(drawn) // most] for number in range(most)] if len(drawn) > most else drawn


def _full_name(name: str, known: list[str]) -> str:
    if name in known:
        return name
    ending_so = [each for each in known if each.split("/")[-1] == name]
    if len(ending_so) == 1:
        return ending_so[0]
    if ending_so:
        raise ConfigError(f"params has {name!r}, which could be each of {', '.join(ending_so)}. Give the full name.")
    raise ConfigError(f"params has {name!r}, which no trial searched{near_miss(name, known)}")


def study_of(observations: Sequence[Observation], mode: str) -> optuna.Study:
    """The trials as Optuna draws them."""
    import optuna
    from optuna.trial import TrialState

    names = dict.fromkeys(name for observation in observations for name in observation.params)
    domains = {name: _domain([each.params[name] for each in observations if name in each.params]) for name in names}
    study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
    study.add_trials(
        optuna.trial.create_trial(
            params={name: _as_in(domains[name], value) for name, value in observation.params.items()},
            distributions={name: domains[name] for name in observation.params},
            value=observation.value,
            state=TrialState.FAIL if observation.value is None else TrialState.COMPLETE,
        )
        for observation in observations
    )
    return study


def _domain(values: list[Any]) -> BaseDistribution:
    """The smallest domain that holds the values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if all(_is_number(value) for value in values):
        low, high, log = min(values), max(values), by_magnitude(values)
        if all(isinstance(value, int) for value in values):
            return IntDistribution(low, high, log=log)
        return FloatDistribution(float(low), float(high), log=log)
    return CategoricalDistribution(list(dict.fromkeys(map(_text, values))))


def by_magnitude(values: list[float]) -> bool:
    """Whether the values are spread over magnitudes: their median is then nearer to the geometric centre."""
    low, high = min(values), max(values)
    if low <= 0 or high / low < _LOG_FROM:
        return False
    middle = math.log(median(values))
    geometric, arithmetic = (math.log(low) + math.log(high)) / 2, math.log(low / 2 + high / 2)
    return abs(middle - geometric) < abs(middle - arithmetic)


def _as_in(domain: BaseDistribution, value: Any) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(domain, CategoricalDistribution):
        return _text(value)
    return float(value) if isinstance(domain, FloatDistribution) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else getattr(value, "__qualname__", None) or repr(value)
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."


def _draw_interactive(kind: PlotKind, study: optuna.Study, path: Path, metric: str, params: list[str] | None) -> None:
    import optuna.visualization as drawings

    figure = _draw(drawings, kind, study, metric, params)
    figure.write_html(path, include_plotlyjs=True)  # the file works without a network


def _draw_still(kind: PlotKind, study: optuna.Study, path: Path, metric: str, params: list[str] | None) -> None:
    import matplotlib
    import numpy
    import optuna.visualization.matplotlib as drawings

    with matplotlib.rc_context():  # the drawings choose a style, for good if nobody takes it back
        axes = _draw(drawings, kind, study, metric, params)
        figure = numpy.atleast_1d(axes).flat[0].figure
        try:
            figure.savefig(path, bbox_inches="tight")
        finally:
            import matplotlib.pyplot

            matplotlib.pyplot.close(figure)


def _draw(drawings: Any, kind: PlotKind, study: optuna.Study, metric: str, params: list[str] | None) -> Any:
    """A figure of the module for interactive plots or of the one for still ones: their functions are alike."""
    if kind == "optimization_history":
        return drawings.plot_optimization_history(study, target_name=metric)
    if kind == "parallel_coordinates":
        return drawings.plot_parallel_coordinate(study, params=params, target_name=metric)
    if kind == "param_importances":
        from optuna.importance import FanovaImportanceEvaluator

        evaluator = FanovaImportanceEvaluator(seed=_EVALUATOR_SEED)
        return drawings.plot_param_importances(study, evaluator=evaluator, params=params, target_name=metric)
    if kind == "slice":
        return drawings.plot_slice(study, params=params, target_name=metric)
    return drawings.plot_contour(study, params=params, target_name=metric)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No remarks of the drawing libraries: about the study made for the plot, and about what is experimental."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextlib.contextmanager
def _named_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"This needs optuna, plotly, matplotlib and scikit-learn: pip install 'paceline[plots]' ({error})."
        ) from error
