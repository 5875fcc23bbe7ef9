"""A trainer's settings for its framework, which have several names in existing code."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from paceline.air.checks import check_kind
from paceline.air.errors import ConfigError
from paceline.run.backend import BackendConfig

C = TypeVar("C", bound=BackendConfig)


def chosen_config(trainer: str, kind: type[C], **spellings: object) -> C:
    """The one that is given, or the defaults. Giving it by two names leaves open which one is meant."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"{trainer} got {' and '.join(given)}, which mean the same: give one of them.")
    for name, value in given.items():
        return check_kind(value, kind, name) or kind()
    return kind()


def config_as(kind: type[C], config: BackendConfig, **added: Any) -> C:
    """The same settings as an object of a class that is derived from the config's own, with others added."""
    same = {each.name: getattr(config, each.name) for each in fields(kind) if hasattr(config, each.name)}
    return kind(**{**same, **added})
