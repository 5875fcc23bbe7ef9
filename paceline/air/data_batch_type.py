"""The path of DataBatchType since Ray 2.5."""

from __future__ import annotations

from paceline.air.util.data_batch_conversion import DataBatchType

__all__ = ["DataBatchType"]
