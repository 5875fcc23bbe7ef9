"""Which metrics of a round a ReportCallback reports, and under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.air.errors import ConfigError, MetricError


class ChosenMetrics:
    """None for all of them, one key, a list of keys, or a dict of new names to keys."""

    def __init__(self, metrics: Any, *, none_computed: str) -> None:
        """`none_computed`: what to do where the library computes no metric at all."""
        self._names_to_keys = _names_to_keys(metrics)
        self._none_computed = none_computed

    def of(self, row: dict[str, Any]) -> dict[str, Any]:
        """What to report of a round's metrics by "<dataset>-<metric>"."""
        if self._names_to_keys is None:
            return row
        missing = [key for key in self._names_to_keys.values() if key not in row]
        if missing:
            computed = ", ".join(row) or f"nothing: {self._none_computed}"
            raise MetricError(f"ReportCallback(metrics=...): no {', '.join(missing)}. Computed was {computed}.")
        return {name: row[key] for name, key in self._names_to_keys.items()}


def _names_to_keys(metrics: Any) -> dict[str, str] | None:
    if metrics is None or isinstance(metrics, Mapping):
        return None if metrics is None else dict(metrics)
    keys = [metrics] if isinstance(metrics, str) else metrics
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(
            f"ReportCallback(metrics={metrics!r}): give a key such as 'valid-rmse', a list of keys, or a dict of names "
            "to keys."
        )
    return {key: key for key in keys}
