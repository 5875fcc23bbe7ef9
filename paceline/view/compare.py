"""What differs between runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.view.flat import flat


def aligned(values: Mapping[str, Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """Key -> the value of each run that has it. Nested values are keys like "a/b", in the order of the first run."""
    found: dict[str, dict[str, Any]] = {}
    for name, each in values.items():
        for key, value in flat(each or {}).items():
            found.setdefault(key, {})[name] = value
    return found


def differing(configs: Mapping[str, Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """The same, only with keys that differ: some run has another value, or does not have it at all."""
    return {key: values for key, values in aligned(configs).items() if differs(values, len(configs))}


def differs(values: Mapping[str, Any], runs: int) -> bool:
    """Whether the values of one key differ between so many runs. NaN equals NaN; 1, 1.0 and True are three values."""
    return len(values) < runs or len({_comparable(value) for value in values.values()}) > 1


def _comparable(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)
