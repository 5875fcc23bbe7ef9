"""Looking up metrics by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
