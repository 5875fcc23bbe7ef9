"""Operation: one step of a plan, applied to each block on its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk


@dataclass(frozen=True)
class BlockPlace:
    """Where an operation is working: for messages, and as part of the seed of what is random."""

    block: int
    name: str
    start: int = 0
    """The first row that comes in, counted from the beginning of the block."""
    fresh: bool = False
    """What comes in is memory that nobody else refers to."""


class Operation(ABC):
    """From the chunks of one block to the chunks of the same block afterwards.

    Picklable; what must not travel (an instance of a user's class, a process pool) is made on
    first use in each process and left out of `__getstate__`.
    """

    keeps_row_count: bool = False
    """As many rows come out of a block as went in."""
    row_local: bool = False
    """Row i of the output depends on row i of the input alone, so that work may start anywhere in a block."""
    native: bool = False
    """Runs no code of the user's, and may be used by several threads at once."""
    keeps_memory_apart: bool = True
    """Of a native one: what comes out refers to the memory of its input, or to memory that nothing else refers to."""

    seeds: tuple[int, ...] = ()
    """Of what it does at random."""

    @property
    @abstractmethod
    def label(self) -> str:
        """For messages and stats: "map_batches(normalise)"."""

    @abstractmethod
    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        """The block after this operation. All chunks that come out have one schema.

        Raises DataError that names the operation and the place; an exception of the user's function is its cause.
        """

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Which columns of the input are needed to make the `wanted` ones of the output; None: all."""
        return None

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        """The schema afterwards, if it can be told without running; else None."""
        return None

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Give back what was made on first use (processes); it is made anew if needed again."""
