"""The old path of DatasetIterator."""

from __future__ import annotations

from paceline.data.iterator import DatasetIterator

__all__ = ["DatasetIterator"]
