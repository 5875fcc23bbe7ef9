"""A fitted preprocessor as a step of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paceline.air.errors import DataError, PacelineError
from paceline.data.operation import Operation, Place

if TYPE_CHECKING:
    from paceline.data.block import Chunk


class Preprocess(Operation):
    """A preprocessor that does not treat each row by itself promises nothing about their number either."""

    def __init__(self, preprocessor: Any) -> None:
        self.preprocessor = preprocessor
        self.keeps_row_count = self.row_local = getattr(preprocessor, "_row_local", True)

    @property
    def label(self) -> str:
        return type(self.preprocessor).__name__

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
