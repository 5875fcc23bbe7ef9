"""How callbacks that report are told which metrics to report, and under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.air.errors import ConfigError


def names_to_keys(metrics: Any, *, example: str) -> dict[str, str] | None:
    """`metrics` is one key of the library's, a list of keys, or a dict of new names to keys; None: all of them."""
    if metrics is None or isinstance(metrics, Mapping):
        return None if metrics is None else dict(metrics)
    keys = [metrics] if isinstance(metrics, str) else metrics
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(
            f"metrics is {metrics!r}: give a key such as {example!r}, a list of keys, or a dict of new names to keys."
        )
    return {key: key for key in keys}
