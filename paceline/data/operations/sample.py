"""random_sample: each row stays with the same probability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.data.operation import Operation, Place

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk


class RandomSample(Operation):
    """Which rows stay follows from the seed, the block and the row alone: the same in every process and epoch."""

    native = True

    def __init__(self, fraction: float, seed: int) -> None:
        self.fraction = fraction
        self.seed = seed
        self.seeds = (seed,)

    @property
    def label(self) -> str:
        return f"random_sample({self.fraction:g})"

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return wanted

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        return schema

    def run(self, chunks: Iterator[Chunk], place: Place) -> Iterator[Chunk]:
        import numpy as np
        import pyarrow as pa

        generator = np.random.default_rng([self.seed, place.block])
        for chunk in chunks:
            # One number per row, whatever the chunks are.
            yield chunk.filter(pa.array(generator.random(chunk.num_rows) < self.fraction))
