"""FeatureHasher: many columns of counts as fewer, by the hash of their names."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.checks import whole_number
from paceline.air.errors import DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors.columns import checked_columns, column_of
from paceline.data.preprocessors.expansion import expanded


def hash_place(text: str, places: int) -> int:
    """One of so many places for a text; the same in every process and on every machine."""
    import xxhash

    return xxhash.xxh64_intdigest(text.encode()) % places


class FeatureHasher(Preprocessor):
    """Replaces columns of token counts by `num_features` columns "hash_<i>": the sums of those whose names hash to i.

    Several columns may share a hash. Hashes are the same on every machine. A missing count is taken for 0.
    """

    _is_fittable = False

    def __init__(self, columns: list[str], num_features: int) -> None:
        self.columns = checked_columns(columns, "FeatureHasher")
        self.num_features = whole_number(num_features, "FeatureHasher: num_features", least=1)

    def _names(self) -> list[str]:
        return [f"hash_{index}" for index in range(self.num_features)]

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        counts = {column: self._counts(chunk, column) for column in self.columns}
        whole = all(pa.types.is_integer(values.type) for values in counts.values())
        kind = pa.int64() if whole else pa.float64()
        sums = [pa.repeat(pa.scalar(0, kind), chunk.num_rows)] * self.num_features
        for column, values in counts.items():
            place = hash_place(column, self.num_features)
            sums[place] = pc.add(sums[place], values.cast(kind))
        return expanded(chunk, self.columns, self._names(), sums, "FeatureHasher")

    def _counts(self, chunk: pa.RecordBatch, column: str) -> pa.Array:
        values = column_of(chunk, column, "FeatureHasher")
        if pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
            values = values.cast(pa.int64())
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise DataError(f"FeatureHasher: column {column!r} is of type {values.type}, but must hold counts.")
        return pc.if_else(pc.is_null(values, nan_is_null=True), pa.scalar(0, values.type), values)

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return (*self.columns, *self._names())
