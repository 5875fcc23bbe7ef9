"""A search space as a list of named parameters, for the models of other libraries.

Such a model wants plain values. So an option that is not one, such as a function or a list,
is searched for by its place among the options; and a multiple of q on a logarithmic scale,
which few libraries have, by its factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.tune.search.domains import Categorical, Domain, Normal, Quantized, index_of
from paceline.tune.search.sample import Float, Integer
from paceline.tune.search.space import values_in
from paceline.tune.search.variants import Found, Path, find, path_text


@dataclass(frozen=True)
class Parameter:
    """One value that is searched for."""

    name: str
    """For example ``optimizer/lr``."""
    path: Path
    domain: Domain
    by_index: bool
    """The model sees the place among the options."""
    by_factor: bool
    """The model sees the value divided by q."""

    def encode(self, value: Any) -> Any:
        """The value as the model and a JSON file see it; one that is not in the domain is refused."""
        if not self.domain.is_valid(value):
            raise ConfigError(f"{self.name} is {value!r}, which is not in {self.domain}.")
        if isinstance(self.domain, Categorical):
            place = index_of(value, self.domain.categories)
            assert place is not None
            return place if self.by_index else self.domain.categories[place]
        assert isinstance(self.domain, Float | Integer)
        return round(value / self.domain.q) if self.by_factor else self.domain.cast(value)

    def decode(self, encoded: Any) -> Any:
        """The value as the trainable gets it."""
        if isinstance(self.domain, Categorical):
            return self.domain.categories[int(encoded)] if self.by_index else encoded
        assert isinstance(self.domain, Float | Integer)
        value = self.domain.cast(encoded * self.domain.q if self.by_factor else encoded)
        return min(max(value, self.domain.lower), self.domain.upper)


@dataclass(frozen=True)
class Parameters:
    """All the parameters of a param_space, by name."""

    found: Found
    by_name: Mapping[str, Parameter]

    def encode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that a configuration has; it may be nested or have a/b keys, and constants in it."""
        values = values_in(self.found, config)
        named = {path_text(path): value for path, value in values.items()}
        return {name: each.encode(named[name]) for name, each in self.by_name.items() if name in named}

    def suggestion(self, encoded: Mapping[str, Any]) -> dict[str, Any]:
        """Decoded and nested as in the space; a parameter inside a list keeps its a/0 name."""
        values = {name: each.decode(encoded[name]) for name, each in self.by_name.items()}
        return nested(values, [name for name, each in self.by_name.items() if _has_no_nested_form(each.path)])

    def check_point(self, point: Mapping[str, Any]) -> None:
        """Refuse a point that names a parameter which does not exist: it would be ignored."""
        for path in values_in(self.found, point):
            name = path_text(path)
            if name not in self.by_name:
                known = list(self.by_name)
                raise ConfigError(f"points_to_evaluate has {name!r}, which is not searched for{near_miss(name, known)}")
        self.encode(point)


def parameters_of(space: Mapping[str, Any], searcher: str, all_by_index: bool, normal: bool) -> Parameters:
    """The parameters of a param_space. What a model cannot search is refused, with advice.

    all_by_index: the model wants every choice as a number. normal: it has normal distributions.
    """
    found = find(space)
    for path in found.grids:
        raise ConfigError(
            f"{path_text(path)} is a grid_search, which {searcher} cannot go through: use tune.choice([...]), or leave "
            "search_alg out to try every value."
        )
    for path in found.functions:
        raise ConfigError(
            f"{path_text(path)} is a sample_from, which {searcher} can neither choose nor learn from: work the value "
            "out in the trainable, or give OptunaSearch a function of the trial, which may have conditions."
        )
    parameters = {}
    for path, domain in found.domains.items():
        name = path_text(path)
        if not normal and _is_normal(domain):
            low, high = _usual_range(domain)
            raise ConfigError(
                f"{name} is {domain}: {searcher} has no normal distributions. Use tune.uniform({low:g}, {high:g}), "
                "which has nearly all of its values; the search finds the likely ones by itself."
            )
        by_index = isinstance(domain, Categorical) and (all_by_index or not _is_plain(domain))
        by_factor = (
            isinstance(domain, Float | Integer)
            and domain.q is not None
            and (domain.is_log or isinstance(domain, Float))
        )
        parameters[name] = Parameter(name, path, domain, by_index, by_factor)
    if not parameters:
        raise ConfigError(
            f"{searcher} has nothing to search for: the param_space has no domain such as tune.uniform(0, 1)."
        )
    return Parameters(found, parameters)


def nested(flat: Mapping[str, Any], except_for: Sequence[str] = ()) -> dict[str, Any]:
    """``{"a/b": 1}`` as ``{"a": {"b": 1}}``."""
    config: dict[str, Any] = {}
    for name, value in flat.items():
        *folders, leaf = [name] if name in except_for else name.split("/")
        place = config
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = value
    return config


def _has_no_nested_form(path: Path) -> bool:
    """Whether its name ``a/b`` does not tell the path: a step is a position in a list, or a key has a slash itself."""
    return not all(isinstance(step, str) and "/" not in step for step in path)


def _is_plain(choice: Categorical) -> bool:
    """Whether a library can hold the options themselves, and tell each from the others."""
    options = choice.categories
    if not all(option is None or isinstance(option, bool | int | float | str) for option in options):
        return False
    return not any(option != option for option in options) and len(set(options)) == len(options)


def _is_normal(domain: Domain) -> bool:
    return isinstance(domain, Float) and math.isinf(domain.lower)


def _usual_range(domain: Domain) -> tuple[float, float]:
    assert isinstance(domain, Float)
    sampler = domain.sampler.inner if isinstance(domain.sampler, Quantized) else domain.sampler
    assert isinstance(sampler, Normal)
    return sampler.mean - 3 * sampler.sd, sampler.mean + 3 * sampler.sd
