"""The public path of DataContext, whose settings have no effect here."""

from __future__ import annotations

from paceline.compat.data_context import (
    DataContext,
    DatasetContext,
    ExecutionOptions,
    ExecutionResources,
    NodeIdStr,
    set_progress_bars,
)

__all__ = [
    "DataContext",
    "DatasetContext",
    "ExecutionOptions",
    "ExecutionResources",
    "NodeIdStr",
    "set_progress_bars",
]
