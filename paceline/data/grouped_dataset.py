"""The oldest path and name of GroupedData."""

from __future__ import annotations

from paceline.data.grouped import GroupedData

__all__ = ["GroupedData", "GroupedDataset"]

GroupedDataset = GroupedData
