"""Turning what report() was given into plain values.

A row travels as JSON and lives in files, so it holds None, truth values, numbers,
text, lists of those and nested dicts. Scalars of numpy, torch and the like become Python
numbers; anything else is refused where it was reported, naming the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from enum import Enum
from math import isfinite
from os import PathLike, fspath
from typing import Any

from paceline.air.constants import AUTOFILLED_KEYS
from paceline.air.errors import MetricError
from paceline.air.secrets import Secret, masked

SIZE_LIMIT = 1_000_000
"""Bytes that one row may take: metrics are kept forever and sent on every report."""
KEY_LIMIT = 50_000
DEPTH_LIMIT = 32
_SMALL_ROW = 64
"""Rows of at most so many plain scalars cannot reach the size limit and are not measured."""
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def plain_metrics(metrics: Any) -> tuple[dict[str, Any], bool]:
    """Return the metrics as plain values, and whether all numbers in them are finite."""
    if type(metrics) is dict and len(metrics) <= _SMALL_ROW:
        # Most rows are a few numbers: one pass over exact types, no recursion.
        finite = True
        for key, value in metrics.items():
            kind = type(value)
            if type(key) is not str:
                break
            if kind is float:
                if not isfinite(value):
                    finite = False
            elif kind is int:
                if not _INT_MIN <= value <= _INT_MAX:
                    break
            elif kind is not bool and value is not None:
                break
        else:
            return dict(metrics), finite
    if not isinstance(metrics, Mapping):
        raise MetricError(
            f"report() takes a dict of metrics, not {type(metrics).__name__}. Write report({{'loss': value}})."
        )
    row = _Row()
    plain = row.mapping(metrics, "", 0)
    return plain, row.finite


class _Row:
    """One conversion: gathers the size and whether all numbers are finite."""

    def __init__(self) -> None:
        self.size = 0
        self.finite = True

    def mapping(self, values: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        if len(values) > KEY_LIMIT:
            raise MetricError(
                f"{_named(path)} has {len(values):,} keys; the limit is {KEY_LIMIT:,}. Report fewer metrics, "
                "and write large tables to a file of the checkpoint."
            )
        self._check_depth(path, depth)
        plain: dict[str, Any] = {}
        for key, value in values.items():
            if not isinstance(key, str):
                raise MetricError(
                    f"{_named(path)} has the key {key!r} of type {type(key).__name__}: keys of metrics are strings. "
                    f"Use {str(key)!r}."
                )
            key = str.__str__(key)
            if not path and key == "config":
                value = masked(value)
            self._grow(len(key) + 4, path)
            plain[key] = self.value(value, f"{path}/{key}" if path else key, depth + 1)
        return plain

    def value(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind is float:
            return self._float(value)
        if kind is int:
            return self._int(value, path)
        if kind is str:
            self._grow(len(value) if value.isascii() else len(value.encode(errors="surrogatepass")), path)
            return self._text(value, path)
        if kind is bool or value is None:
            return value
        if isinstance(value, Mapping):
            return self.mapping(value, path, depth)
        if kind is list or kind is tuple:
            self._check_depth(path, depth)
            self._grow(len(value) * 9, path)
            return [self.value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        return self._converted(value, path, depth)

    def _converted(self, value: Any, path: str, depth: int) -> Any:
        """Values of other types that have an exact plain form."""
        if isinstance(value, Enum):
            return self.value(value.value, path, depth)
        if isinstance(value, Decimal):
            return self._float(float(value))
        if isinstance(value, date):  # datetime is a date, too
            return value.isoformat()
        if isinstance(value, Secret):
            return masked(value)
        if isinstance(value, str):  # subclasses, such as numpy's
            return self.value(str.__str__(value), path, depth)
        if isinstance(value, float):
            return self._float(float.__float__(value))
        if isinstance(value, int):
            return self._int(int.__int__(value), path)
        if isinstance(value, PathLike):
            return self.value(fspath(value), path, depth)
        if isinstance(value, list | tuple):
            return self.value(list(value), path, depth)
        if callable(getattr(value, "item", None)):
            return self._scalar(value, path, depth)
        raise MetricError(
            f"{_named(path)} is of type {_type_name(value)}, which is not a plain value. "
            "Report numbers, text, None, lists of them or nested dicts; put objects into the checkpoint."
        )

    def _scalar(self, value: Any, path: str, depth: int) -> Any:
        """A scalar or one-element array of numpy, torch or another array library."""
        shape = tuple(getattr(value, "shape", ()))
        if math.prod(shape) != 1:
            raise MetricError(
                f"{_named(path)} is a {_type_name(value)} of shape {shape}: a metric is a single value. "
                "Reduce it (for example with .mean().item()), or report a list with .tolist()."
            )
        item = value.item()
        if type(item) is type(value):
            raise MetricError(f"{_named(path)} is of type {_type_name(value)}, which has no Python form.")
        return self.value(item, path, depth)

    def _float(self, value: float) -> float:
        if not isfinite(value):
            self.finite = False
        return value

    @staticmethod
    def _int(value: int, path: str) -> int:
        if not _INT_MIN <= value <= _INT_MAX:
            raise MetricError(f"{_named(path)} is a whole number beyond 64 bits: report it as float or text.")
        return value

    @staticmethod
    def _text(value: str, path: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise MetricError(f"{_named(path)} is text that is not valid Unicode (a lone surrogate).") from None
        return value

    def _grow(self, size: int, path: str) -> None:
        self.size += size
        if self.size > SIZE_LIMIT:
            raise MetricError(
                f"The metrics are larger than the limit of {SIZE_LIMIT:,} bytes: {self.size:,} bytes up to and "
                f"including {_named(path)}. Write large values to a file of the checkpoint."
            )

    @staticmethod
    def _check_depth(path: str, depth: int) -> None:
        if depth > DEPTH_LIMIT:
            raise MetricError(f"{_named(path)} is nested deeper than {DEPTH_LIMIT} levels, or contains itself.")


def _named(path: str) -> str:
    if not path:
        return "The dict of metrics"
    return f"The metric {path!r}" if len(path) <= 200 else f"The metric {path[:200]!r}..."


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def nested_get(metrics: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """The value at ``a/b``: a key of that name, or a path into nested dicts; `default` if absent."""
    if key in metrics:
        return metrics[key]
    value: Any = metrics
    for part in key.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def flattened(row: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Nested dicts as one level: ``{"a": {"b": 1}}`` becomes ``{"a/b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and value:
            flat.update((f"{key}{separator}{inner}", item) for inner, item in flattened(value, separator).items())
        else:
            flat[key] = value
    return flat


def reported(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the user reported, of a row."""
    return {name: value for name, value in row.items() if name not in AUTOFILLED_KEYS}


def number_in(row: Mapping[str, Any], key: str) -> int | float:
    """The user's own keys win in a row: a key that paceline fills in may hold anything."""
    value = row.get(key)
    if isinstance(value, float):
        return value if math.isfinite(value) else 0
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
