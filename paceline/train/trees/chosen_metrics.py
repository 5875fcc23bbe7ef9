"""Which metrics of a round a ReportCallback reports, and under which names."""

from __future__ import annotations

from typing import Any

from paceline.air.errors import MetricError
from paceline.train.names_to_keys import names_to_keys


class ChosenMetrics:
    """None for all of them, one key, a list of keys, or a dict of new names to keys."""

    def __init__(self, metrics: Any, *, none_computed: str) -> None:
        """`none_computed`: what to do where the library computes no metric at all."""
        self._names_to_keys = names_to_keys(metrics, example="valid-rmse")
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
