"""What Optuna searches: a param_space, a dictionary of its distributions, or a function of the trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.air.metrics import flattened
from paceline.tune.search.domains import Categorical
from paceline.tune.search.parameters import Parameter, Parameters, nested, parameters_of
from paceline.tune.search.sample import Float, Integer

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

Distributions = Mapping[str, "BaseDistribution"]
DefineByRun = Callable[["optuna.Trial"], dict[str, Any] | None]


class OptunaSpace(ABC):
    """Between a study, which has flat names and plain values, and configurations."""

    @staticmethod
    def read(space: Any) -> OptunaSpace:
        """The kind of space that the user gave."""
        from optuna.distributions import BaseDistribution

        if not isinstance(space, Mapping):
            if callable(space):
                return FunctionSpace(space)
            raise ConfigError(
                f"space is {space!r}: give OptunaSearch a dictionary of domains or of optuna.distributions, or a "
                "function of the trial."
            )
        flat = flattened(space)
        given = [name for name, value in flat.items() if isinstance(value, BaseDistribution)]
        if not given:
            return OptunaDomains(parameters_of(space, "OptunaSearch", all_by_index=False, normal=False))
        for name, value in flat.items():
            if name not in given:
                raise ConfigError(
                    f"space has {name}={value!r} beside distributions of Optuna: put constants and domains of tune "
                    "into the Tuner's param_space."
                )
        return DistributionSpace(flat)

    @property
    def fixed(self) -> dict[str, BaseDistribution] | None:
        """Where that is known in advance: what every trial chooses from."""
        return None

    @abstractmethod
    def suggestion(self, trial: optuna.Trial) -> dict[str, Any]:
        """What the trial has chosen, as a configuration."""

    @abstractmethod
    def encode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Those parameters of the study that a configuration has."""

    @abstractmethod
    def distributions(self, encoded: Mapping[str, Any]) -> Distributions:
        """What each of a trial's parameters was chosen from."""

    @abstractmethod
    def is_complete(self, encoded: Mapping[str, Any]) -> bool:
        """Whether no parameter is missing."""

    def check_point(self, point: Mapping[str, Any]) -> None:
        """Refuse a point to evaluate that cannot be."""
        self.encode(point)


class DistributionSpace(OptunaSpace):
    """A dictionary of Optuna's distributions by name."""

    def __init__(self, distributions: dict[str, BaseDistribution]) -> None:
        self._distributions = distributions

    @property
    def fixed(self) -> dict[str, BaseDistribution]:
        return self._distributions

    def suggestion(self, trial: optuna.Trial) -> dict[str, Any]:
        return nested(trial.params)

    def encode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        flat = flattened(config)
        return {name: flat[name] for name in self._distributions if name in flat}

    def distributions(self, encoded: Mapping[str, Any]) -> Distributions:
        return self._distributions

    def is_complete(self, encoded: Mapping[str, Any]) -> bool:
        return len(encoded) == len(self._distributions)

    def check_point(self, point: Mapping[str, Any]) -> None:
        for name in flattened(point):
            if name not in self._distributions:
                known = list(self._distributions)
                raise ConfigError(f"points_to_evaluate has {name!r}, which is not searched for{near_miss(name, known)}")
        super().check_point(point)


class OptunaDomains(DistributionSpace):
    """A param_space with domains of tune."""

    def __init__(self, parameters: Parameters) -> None:
        super().__init__({name: distribution_of(each) for name, each in parameters.by_name.items()})
        self._parameters = parameters

    def suggestion(self, trial: optuna.Trial) -> dict[str, Any]:
        return self._parameters.suggestion(trial.params)

    def encode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._parameters.encode(config)

    def check_point(self, point: Mapping[str, Any]) -> None:
        self._parameters.check_point(point)


class FunctionSpace(OptunaSpace):
    """A function that asks the trial for one parameter after the other, maybe depending on earlier ones."""

    def __init__(self, define: DefineByRun) -> None:
        self._define = define

    def suggestion(self, trial: optuna.Trial) -> dict[str, Any]:
        constants = self._run(trial)
        for name, value in trial.params.items():
            if name in constants and constants[name] != value:
                raise ConfigError(
                    f"The function that defines the space returned {name}={constants[name]!r}, where {name!r} is also "
                    f"a parameter, with the value {value!r}: give one of them another name."
                )
        return nested({**constants, **trial.params})

    def encode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The function says itself which parameters it asks for, given those of the configuration."""
        flat = flattened(config)
        return {name: flat[name] for name in self._asked_for(flat)[0]}

    def distributions(self, encoded: Mapping[str, Any]) -> Distributions:
        return self._asked_for(encoded)[0]

    def is_complete(self, encoded: Mapping[str, Any]) -> bool:
        return self._asked_for(encoded)[1]

    def _asked_for(self, values: Mapping[str, Any]) -> tuple[Distributions, bool]:
        """The distributions of the parameters as far as there are values; whether that is to the end."""
        from optuna.trial import FixedTrial

        trial = FixedTrial(dict(values))
        try:
            self._run(trial)
        except ValueError:  # it asked for a parameter without a value
            return trial.distributions, False
        return trial.distributions, True

    def _run(self, trial: Any) -> dict[str, Any]:
        constants = self._define(trial)
        if constants is None:
            return {}
        if not isinstance(constants, Mapping):
            raise ConfigError(
                f"The function that defines the space returned {constants!r}: let it return a dictionary of further "
                "values for the configuration, or nothing."
            )
        return flattened(constants)


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """A domain in Optuna's words, for the encoded values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    domain = parameter.domain
    if isinstance(domain, Categorical):
        return CategoricalDistribution(range(len(domain)) if parameter.by_index else domain.categories)
    assert isinstance(domain, Float | Integer)
    if parameter.by_factor:
        return IntDistribution(round(domain.lower / domain.q), round(domain.upper / domain.q), log=domain.is_log)
    if isinstance(domain, Integer):
        return IntDistribution(domain.lower, domain.largest, log=domain.is_log, step=domain.q or 1)
    return FloatDistribution(domain.lower, domain.upper, log=domain.is_log)
