"""Normalizer: scales each row to length 1."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from paceline.air.checks import check_choice
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors.columns import checked_columns, column_of, with_columns
from paceline.data.preprocessors.numeric import as_float, numbers_and_nulls

NORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "l1": lambda table: np.abs(table).sum(axis=0),
    "l2": lambda table: np.sqrt(np.square(table).sum(axis=0)),
    "max": lambda table: np.abs(table).max(axis=0),
}


class Normalizer(Preprocessor):
    """Divides each row's values in the given columns by their common norm: "l1", "l2" or "max" (of absolute values).

    Rows of zeros stay as they are. A row in which one of the values is missing has no norm: all become missing.
    """

    _is_fittable = False

    def __init__(self, columns: list[str], norm: str = "l2") -> None:
        self.columns = checked_columns(columns, "Normalizer")
        check_choice(norm, "Normalizer: norm", tuple(NORMS))
        self.norm = norm

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        pairs = [numbers_and_nulls(column_of(chunk, name, "Normalizer"), name, "Normalizer") for name in self.columns]
        table = np.array([numbers for numbers, _ in pairs], np.float64)
        missing = [nulls for _, nulls in pairs if nulls is not None]
        norms = NORMS[self.norm](table)
        norms[norms < 10 * np.finfo(np.float64).eps] = 1.0
        table /= norms
        mask = np.logical_or.reduce(missing) if missing else None
        replaced = {
            name: pa.array(as_float(row, numbers), mask=mask)
            for name, row, (numbers, _) in zip(self.columns, table, pairs, strict=True)
        }
        return with_columns(chunk, replaced)
