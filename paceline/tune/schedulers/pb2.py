"""Population-based bandits: population-based training whose new parameters come from a model instead of chance."""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from paceline.air.checks import is_number
from paceline.air.errors import ConfigError
from paceline.run.spec import Trial
from paceline.tune.schedulers.pbt import ExploreFunction, PopulationBasedTraining, PopulationMember
from paceline.tune.schedulers.pbt_explore import copied
from paceline.tune.schedulers.trial_scheduler import Controller, Restart

if TYPE_CHECKING:
    from paceline.tune.schedulers.pb2_model import Gain

Path = tuple[str, ...]

FEWEST_OBSERVATIONS = 3
"""With fewer, new parameters are drawn by chance."""


@dataclass(frozen=True)
class Between:
    """The bounds of one parameter."""

    lower: float
    upper: float

    def sample(self, spec: Any = None, size: int = 1, random_state: Any = None) -> float:
        return self.at(random_state.random())

    def is_valid(self, value: Any) -> bool:
        return is_number(value) and self.lower <= value <= self.upper

    def at(self, share: float) -> float:
        return self.lower + share * (self.upper - self.lower)

    def share_of(self, value: float) -> float:
        return (value - self.lower) / (self.upper - self.lower)


class PB2(PopulationBasedTraining):
    """Population-based training for small populations: a Gaussian process picks the new parameters.

    The method is that of "Provably efficient online hyperparameter optimization with
    population-based bandits". `hyperparam_bounds` gives the smallest and the largest value
    of each parameter, ``{"lr": [1e-4, 1e-1]}``, nested as param_space is. Parameters that
    param_space does not have are drawn between their bounds at the start. Numbers are real
    unless a trial's own value is a whole number. The rest is as in PopulationBasedTraining.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: ExploreFunction | None = None,
    ) -> None:
        if importlib.util.find_spec("sklearn") is None:
            raise ImportError("PB2 fits its model with scikit-learn: pip install 'paceline[sklearn]'", name="sklearn")
        if not hyperparam_bounds:
            raise ConfigError("PB2 needs hyperparam_bounds, such as {'lr': [1e-4, 1e-1]}.")
        bounds = _bounds(hyperparam_bounds, "hyperparam_bounds")
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            hyperparam_mutations=bounds,
            quantile_fraction=quantile_fraction,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
        )
        self._bounds = dict(_leaves(bounds))
        self._observations: list[Gain] = []
        self._start_of_interval: dict[Trial, tuple[float, float]] = {}
        """Time and score of each member when its present interval began; after a takeover, the donor's score."""

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        super().on_trial_add(controller, trial)
        self._point_of(trial)  # refuses text and the like before anything runs

    def _take_turn(self, trial: Trial, member: PopulationMember, time: float, score: float) -> None:
        from paceline.tune.schedulers.pb2_model import Gain

        started, before = self._start_of_interval.get(trial, (time, score))
        if time > started and math.isfinite(before):
            gain = (score - before) / (time - started)
            if not math.isfinite(gain):  # it diverged: as bad as the worst so far
                gain = min((each.gain for each in self._observations), default=0.0)
            self._observations.append(Gain(time, before, self._point_of(trial), gain))
        self._start_of_interval[trial] = (time, score)
        super()._take_turn(trial, member, time, score)

    def _takeover(self, controller: Controller, trial: Trial, upper: list[Trial]) -> Restart | None:
        restart = super()._takeover(controller, trial, upper)
        if restart is not None and restart.donor is not None:
            time, _ = self._start_of_interval[trial]
            self._start_of_interval[trial] = (time, self._start_of_interval[restart.donor][1])
        return restart

    def _new_config(self, trial: Trial, donor: Trial, rng: random.Random) -> dict[str, Any]:
        config = copied(donor.config)
        for (path, bounds), share in zip(self._bounds.items(), self._next_point(trial, donor, rng), strict=True):
            *folders, key = path
            inner = config
            for folder in folders:
                inner = inner[folder]
            whole = isinstance(inner[key], Integral)
            inner[key] = round(bounds.at(share)) if whole else bounds.at(share)
        return config

    def _next_point(self, trial: Trial, donor: Trial, rng: random.Random) -> list[float]:
        before = self._start_of_interval[donor][1]
        if len(self._observations) < FEWEST_OBSERVATIONS or not math.isfinite(before):
            return [rng.random() for _ in self._bounds]
        from paceline.tune.schedulers.pb2_model import next_point

        others = [self._point_of(member) for member in self._members if member is not trial]
        return next_point(self._observations, time=self._members[trial].time, before=before, pending=others, rng=rng)

    def _point_of(self, trial: Trial) -> tuple[float, ...]:
        return tuple(bounds.share_of(_number_at(trial.config, path)) for path, bounds in self._bounds.items())

    def _left(self, controller: Controller, trial: Trial) -> None:
        super()._left(controller, trial)
        self._start_of_interval.pop(trial, None)


def _bounds(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same nested dictionary with Between at its leaves."""
    checked: dict[str, Any] = {}
    for key, value in given.items():
        place = f"{where}[{key!r}]"
        if isinstance(value, Mapping) and value:
            checked[key] = _bounds(value, place)
        elif (
            isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]
        ):
            checked[key] = Between(float(value[0]), float(value[1]))
        else:
            raise ConfigError(f"{place} is {value!r}: give the smallest and the largest value, such as [1e-4, 1e-1].")
    return checked


def _leaves(bounds: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Between]]:
    for key, value in bounds.items():
        if isinstance(value, Between):
            yield (*path, key), value
        else:
            yield from _leaves(value, (*path, key))


def _number_at(config: Mapping[str, Any], path: Path) -> float:
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if not is_number(value):
        raise ConfigError(
            f"PB2 chooses numbers between bounds, but a trial's configuration has {value!r} under {'/'.join(path)!r}."
        )
    return float(value)
