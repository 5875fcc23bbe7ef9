"""The order of a dataset's rows in one epoch: a function of (seed, epoch), not of the number of workers.

Rows are numbered by their *position* in that order. A worker gets ranges of positions; this file says
which rows of which blocks those are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.data.execution import Piece
from paceline.data.ingest.ranges import Ranges
from paceline.data.permutation import block_permutation, permute

Shuffle = Literal["none", "blocks", "rows"]
"""Not at all, by whole blocks, or each row on its own."""

NEAR_ROWS = 1024
"""Reading so many rows in vain costs less than beginning to read anew after them."""


@dataclass(frozen=True)
class EpochOrder:
    """Rows in the order of one epoch."""

    counts: tuple[int, ...]
    """Rows per block."""
    shuffle: Shuffle
    seed: int
    epoch: int

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def pieces(self, ranges: Ranges) -> list[Piece]:
        """What to read for these positions, in order.

        Where rows are shuffled one by one the source itself has them in the order of the epoch. Of a local
        shuffle that was interrupted, thousands of single rows may be left: those near each other are read together.
        """
        pieces: list[Piece] = []
        group: list[Piece] = []
        for piece in self._stretches(ranges):
            if group and not _near(group[-1], piece):
                pieces.append(_as_one(group))
                group = []
            group.append(piece)
        return [*pieces, _as_one(group)] if group else pieces

    def _stretches(self, ranges: Ranges) -> list[Piece]:
        """These positions, in order, as rows of blocks."""
        blocks = self._blocks()
        ends = np.cumsum([self.counts[block] for block in blocks], dtype=np.int64)
        pieces: list[Piece] = []
        for start, stop in ranges:
            index = int(np.searchsorted(ends, start, side="right"))
            while start < stop:
                block, end = int(blocks[index]), int(ends[index])
                begin = end - self.counts[block]
                last = min(stop, end)
                if last > start:
                    self._add(pieces, Piece(block, start - begin, last - begin))
                    start = last
                index += 1
        return pieces

    @staticmethod
    def _add(pieces: list[Piece], piece: Piece) -> None:
        before = pieces[-1] if pieces else None
        if before is not None and before.block == piece.block and before.stop == piece.start:
            pieces[-1] = Piece(piece.block, before.start, piece.stop)
        else:
            pieces.append(piece)

    def row_numbers(self, ranges: Ranges, at_a_time: int) -> Iterator[np.ndarray]:
        """The rows (numbered as the dataset has them) at these positions, in arrays of at most `at_a_time`."""
        if self.shuffle == "rows":
            for start, stop in ranges:
                for low in range(start, stop, at_a_time):
                    positions = np.arange(low, min(stop, low + at_a_time), dtype=np.int64)
                    yield permute(positions, self.rows, self.seed, self.epoch)
            return
        begins = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        for piece in self._stretches(ranges):
            assert piece.stop is not None
            for low in range(piece.start, piece.stop, at_a_time):
                high = min(piece.stop, low + at_a_time)
                yield begins[piece.block] + np.arange(low, high, dtype=np.int64)

    def _blocks(self) -> Sequence[int] | np.ndarray:
        if self.shuffle == "blocks":
            return block_permutation(len(self.counts), self.seed, self.epoch)
        return range(len(self.counts))


def _near(one: Piece, other: Piece) -> bool:
    assert one.stop is not None
    return one.block == other.block and 0 <= other.start - one.stop <= NEAR_ROWS


def _as_one(pieces: list[Piece]) -> Piece:
    """One piece from the first row to the last, of which only those of the given ones are wanted."""
    if len(pieces) == 1:
        return pieces[0]
    kept = tuple((piece.start, piece.stop) for piece in pieces if piece.stop is not None)
    return Piece(pieces[0].block, kept[0][0], kept[-1][1], kept)
