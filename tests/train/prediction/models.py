"""Predictors that are simple enough to know what they must say."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from paceline import data
from paceline.air.checkpoint import Checkpoint
from paceline.train.predictor import Predictor


class Line(Predictor):
    """slope * x + offset, with the slope from the checkpoint. Subclasses say which kinds of data they take."""

    def __init__(self, slope: float = 2.0, offset: float = 0.0, preprocessor: Any = None) -> None:
        super().__init__(preprocessor)
        self.slope, self.offset = slope, offset

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, offset: float = 0.0) -> Self:
        return cls(checkpoint.to_dict()["slope"], offset, checkpoint.get_preprocessor())


class PandasLine(Line):
    def _predict_pandas(self, data: pd.DataFrame, power: int = 1) -> pd.DataFrame:
        return pd.DataFrame({"predictions": (self.slope * data["x"] + self.offset) ** power})


class NumpyLine(Line):
    def _predict_numpy(self, data: Any, power: int = 1) -> Any:
        x = data if isinstance(data, np.ndarray) else data["x"]
        return (self.slope * x + self.offset) ** power


class ArrowLine(Line):
    def _predict_arrow(self, data: pa.Table, power: int = 1) -> pa.Table:
        x = data.column("x")
        return pa.table({"predictions": pc.power(pc.add(pc.multiply(x, self.slope), self.offset), power)})


class ColumnsSeen(Predictor):
    """Says which columns it was given, and how many rows at once, and in which process."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        return cls(checkpoint.get_preprocessor())

    def _predict_arrow(self, data: pa.Table) -> pa.Table:
        rows = data.num_rows
        seen = [",".join(data.column_names)] * rows
        return pa.table({"columns": seen, "rows": [rows] * rows, "process": [os.getpid()] * rows})


def line_checkpoint(preprocessor: Any = None) -> Checkpoint:
    checkpoint = Checkpoint.from_dict({"slope": 2.0})
    if preprocessor is not None:
        checkpoint.set_preprocessor(preprocessor)
    return checkpoint


def numbers(rows: int, blocks: int = 3) -> data.Dataset:
    frame = pd.DataFrame({"x": np.arange(rows, dtype=float), "name": [f"row {number}" for number in range(rows)]})
    return data.from_pandas(frame).repartition(blocks)
