"""The old path of DatasetPipeline: what repeat() and window() give is a DataIterator here."""

from __future__ import annotations

from paceline.data.iterator import DataIterator

__all__ = ["DatasetPipeline"]

DatasetPipeline = DataIterator
