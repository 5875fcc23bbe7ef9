"""A fitted preprocessor as a step of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paceline.air.errors import DataError, PacelineError
from paceline.data.operation import Operation, Place

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk


class Preprocess(Operation):
    """A preprocessor that does not treat each row by itself promises nothing about their number either."""

    keeps_memory_apart = False

    def __init__(self, preprocessor: Any) -> None:
        self.preprocessor = preprocessor
        self.keeps_row_count = self.row_local = bool(preprocessor._row_local)
        self.native = not preprocessor._runs_user_code()

    @property
    def label(self) -> str:
        return type(self.preprocessor).__name__

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        needed, made = self.preprocessor._input_columns(), self.preprocessor._output_columns()
        if wanted is None or needed is None or made is None:
            return None
        return tuple(dict.fromkeys((*(name for name in wanted if name not in made), *needed)))

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        """By transforming no rows, where the code is ours; what then goes wrong is told when rows come."""
        import pyarrow as pa

        if not self.native:
            return None
        try:
            return self.preprocessor._transform_chunk(pa.RecordBatch.from_pylist([], schema=schema)).schema
        except Exception:
            return None

    def run(self, chunks: Iterator[Chunk], place: Place) -> Iterator[Chunk]:
        for chunk in chunks:
            try:
                result: Chunk = self.preprocessor._transform_chunk(chunk)
            except DataError as error:
                raise DataError(f"{place.name}: {error}") from error
            except PacelineError:
                raise
            except Exception as error:
                raise DataError(f"{self.label} failed on {place.name}: {type(error).__name__}: {error}") from error
            yield result
