"""What configs share: small checks, each of which refuses with ConfigError and says what to write; and their text."""

from __future__ import annotations

import dataclasses
import math
import operator
import sys
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

from paceline.air.errors import ConfigError

T = TypeVar("T")

_LONGEST_SHOWN = 100
_PLAIN = (str, bytes, int, float, list, tuple, set, frozenset, type(None))


def is_search_space(value: Any) -> bool:
    """True for a domain to sample from, or a grid: such a field is checked after sampling."""
    if isinstance(value, dict):
        return set(value) == {"grid_search"}
    return not isinstance(value, _PLAIN) and callable(getattr(value, "sample", None))


def whole_number(value: Any, name: str, *, least: int, most: int | None = None, advice: str = "") -> int:
    """`value` as an int. Truth values, text and fractions are refused: they are slips."""
    allowed = f"from {least} to {most}" if most is not None else f"of {least} or more"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} is {value!r}: give a whole number {allowed}. {advice}".rstrip()) from None
    if number < least or (most is not None and number > most):
        raise ConfigError(f"{name} is {number}: give a whole number {allowed}. {advice}".rstrip())
    return number


def is_number(value: Any) -> bool:
    """True for a finite real number; a truth value is not taken for one."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def check_bool(value: Any, name: str, advice: str = "") -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}: use True or False. {advice}".rstrip())


def check_choice(value: Any, name: str, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} is {value!r}: use one of {', '.join(repr(choice) for choice in choices)}.")


def check_seconds(value: Any, name: str, *, none_means: str = "", zero_allowed: bool = False) -> None:
    if value is None and none_means:
        return
    if not is_number(value) or value < 0 or (value == 0 and not zero_allowed):
        otherwise = f" None means: {none_means}." if none_means else ""
        raise ConfigError(f"{name} is {value!r}: give a number of seconds above 0.{otherwise}")


def check_kind(value: Any, kind: type[T], name: str) -> T | None:
    """`value` if it is None or of that class; a dict or the class itself is answered with what to write."""
    if value is None or isinstance(value, kind):
        return value
    called = kind.__name__
    if isinstance(value, Mapping):
        shown = repr(value) if len(repr(value)) <= _LONGEST_SHOWN else "{...}"
        raise ConfigError(f"{name} is a dict, not a {called}: write {name}={called}(**{shown}).")
    if value is kind:
        raise ConfigError(f"{name} is the class {called}: make an object of it, {name}={called}(...).")
    raise ConfigError(f"{name} must be a {called}, not {type(value).__name__}: {value!r}.")


def near_miss(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the one that was probably meant, or all there are."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f": did you mean {near[0]}?"
    public = [each for each in known if not each.startswith("_")]
    return f"; there are: {', '.join(public)}." if public else "; there are none."


def warn_at_users_line(message: str) -> None:
    """A warning that points at the line outside of this package that led to it."""
    level, frame = 2, sys._getframe(1)
    while str(frame.f_globals.get("__name__", "")).startswith("paceline.") and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


class ShortRepr:
    """A dataclass that derives from this and sets ``repr=False`` shows the fields that were set."""

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]  # only its subclasses are dataclasses
            if field.repr and not _is_default(getattr(self, field.name), field)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
        return type(value) is type(default) and bool(value == default)
    return value is field.default or (type(value) is type(field.default) and bool(value == field.default))
