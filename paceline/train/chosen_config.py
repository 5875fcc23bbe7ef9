"""A trainer's settings for its framework, which have several names in existing code."""

from __future__ import annotations

from typing import TypeVar

from paceline.air.errors import ConfigError
from paceline.run.backend import BackendConfig

C = TypeVar("C", bound=BackendConfig)


def chosen_config(trainer: str, kind: type[C], **spellings: object) -> C:
    """The one that is given, or the defaults. Giving it by two names leaves open which one is meant."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"{trainer} got {' and '.join(given)}, which mean the same: give one of them.")
    for name, value in given.items():
        if not isinstance(value, kind):
            raise ConfigError(f"{trainer}({name}=...) takes a {kind.__name__}, not {type(value).__name__}.")
        return value
    return kind()
