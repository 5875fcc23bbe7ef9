"""A configuration as loggers write it with every row: without secrets and the content of very long values.

A few megabytes that somebody put into a configuration would otherwise be written again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.air.secrets import masked
from paceline.run.callbacks import Row

LONGEST_VALUE = 10_000
"""Characters, bytes or items of one value."""
_DEEPEST = 50


class ShortConfigs:
    """Rows with the short form of their configuration. Each configuration is looked through once."""

    def __init__(self) -> None:
        self._last: Any = None
        self._short: Any = None

    def rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A row stays as it is if there is nothing to leave out."""
        return [self._row(row) for row in rows]

    def _row(self, row: Row) -> Row:
        config = row.get("config")
        if config is not self._last:
            self._last, self._short = config, short_config(config)
        return row if self._short is config else {**row, "config": self._short}


def short_config(config: Any) -> Any:
    """The configuration itself, or a copy without secrets and without what is too long."""
    return shortened(masked(config))


def shortened(value: Any, depth: int = 0) -> Any:
    """The value itself, or a copy in which what is too long is told by its kind and length."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        return value if len(value) <= LONGEST_VALUE else f"<{type(value).__name__} of length {len(value)}>"
    if depth >= _DEEPEST:
        return value
    if isinstance(value, Mapping):
        short = {key: shortened(inner, depth + 1) for key, inner in value.items()}
        return short if any(short[key] is not value[key] for key in short) else value
    if isinstance(value, list | tuple):
        if len(value) > LONGEST_VALUE:
            return f"<{type(value).__name__} of length {len(value)}>"
        items = [shortened(inner, depth + 1) for inner in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value
