"""Rows and configurations in the forms that services take: numbers by flat names, text of limited length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.air.metrics import flattened
from paceline.air.secrets import masked

_DEEPEST = 50
_STARS = "***"


def numbers_in(metrics: Mapping[str, Any]) -> dict[str, int | float]:
    """The numbers of a row; truth values count as 1 and 0, and nested dicts become ``a/b``."""
    numbers: dict[str, int | float] = {}
    for key, value in metrics.items():
        kind = type(value)
        if kind is float or kind is int:
            numbers[key] = value
        elif kind is bool:
            numbers[key] = int(value)
        elif isinstance(value, Mapping):
            numbers.update((f"{key}/{name}", number) for name, number in numbers_in(value).items())
    return numbers


def flat_config(config: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """A configuration with one level of names: ``train_loop_config/lr``."""
    return flattened(config, separator)


def shown_config(config: Any) -> dict[str, Any]:
    """A configuration as it may be shown to others: plain values, objects as text, secrets as stars."""
    shown = _shown(masked(config), 0)
    return shown if isinstance(shown, dict) else {}


def _shown(value: Any, depth: int) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping) and depth < _DEEPEST:
        if len(value) == 1 and value.get("secret") is True:
            return _STARS
        return {str(key): _shown(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [_shown(inner, depth + 1) for inner in value]
    return repr(value)


def cut(text: str, longest: int) -> str:
    """The text, or its beginning with dots that say that it goes on."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
