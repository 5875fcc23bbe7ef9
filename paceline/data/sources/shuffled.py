"""Rows, or whole blocks, in a random order that is another one in each epoch."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from paceline.data.block import Block, Origin, ReadRequest, Source, default_block_rows
from paceline.data.plan import CombinedSource
from paceline.data.store import StoredSource

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.plan import Plan

Positions = npt.NDArray[np.int64]

_ROUNDS = 8
_MASK = (1 << 64) - 1
_ODD_1 = np.uint64(0xBF58476D1CE4E5B9)
_ODD_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _HALF = np.uint64(30), np.uint64(27), np.uint64(32)
_LARGEST = 1 << 62


def permute(positions: npt.ArrayLike, n: int, seed: int, epoch: int) -> Positions:
    """Which of n rows stands at each of these positions in the order of (seed, epoch).

    All positions together give every row exactly once. Positions lie in 0..n-1.
    """
    current = np.array(positions, dtype=np.int64)  # a copy: it is changed below
    if current.size == 0:
        return current
    if not 0 < n <= _LARGEST or current.min() < 0 or current.max() >= n:
        raise ValueError(f"positions {current.min()} to {current.max()} are not all among {n} rows")
    keys = _round_keys(seed, epoch)
    side = math.isqrt(n - 1) + 1  # the network works on side x side numbers, hardly more than n
    flat = current.reshape(-1).view(np.uint64)
    outside = np.arange(flat.size)
    while outside.size:  # what left 0..n-1 is sent through again until it is back
        moved = _network(flat[outside], side, keys)
        flat[outside] = moved
        outside = outside[moved >= n]
    return current


def block_permutation(n: int, seed: int, epoch: int) -> Positions:
    """The order of n blocks in one epoch."""
    return permute(np.arange(n, dtype=np.int64), n, seed, epoch)


def _network(numbers: npt.NDArray[np.uint64], side: int, keys: list[np.uint64]) -> npt.NDArray[np.uint64]:
    width = np.uint64(side)
    left, right = np.divmod(numbers, width)
    for key in keys:
        moved = left + _below(width, right, key)
        left, right = right, np.minimum(moved, moved - width)  # modulo: below zero wraps to something huge
    result: npt.NDArray[np.uint64] = left * width + right
    return result


def _below(width: np.uint64, values: npt.NDArray[np.uint64], key: np.uint64) -> npt.NDArray[np.uint64]:
    """A hash of each value, from 0 to width - 1. Products wrap at 64 bits, as they should."""
    mixed = values + key
    mixed ^= mixed >> _SHIFT_1
    mixed *= _ODD_1
    mixed ^= mixed >> _SHIFT_2
    mixed *= _ODD_2
    mixed >>= _HALF
    mixed *= width
    mixed >>= _HALF
    return mixed


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    state = _mix((seed & _MASK) ^ _mix((epoch + 1) & _MASK))
    keys = []
    for _ in range(_ROUNDS):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        keys.append(np.uint64(_mix(state)))
    return keys


def _mix(value: int) -> int:
    """Every bit of the input changes about half of the bits of the output."""
    value = ((value ^ (value >> 30)) * int(_ODD_1)) & _MASK
    value = ((value ^ (value >> 27)) * int(_ODD_2)) & _MASK
    return value ^ (value >> 31)


def even_cuts(rows: int, parts: int) -> list[int]:
    """Where to cut so that parts differ by one row at most: parts + 1 numbers from 0 to rows."""
    return [part * rows // parts for part in range(parts + 1)]


class _ComputedOrder(Source):
    """Base: rows of `child`, which must be stored when read, in an order that is computed."""

    fresh = True  # rows are copied together

    def __init__(self, child: Source, seed: int, num_blocks: int | None = None) -> None:
        self.child = child
        self.seed = seed
        self.epoch = 0
        self.worker_share = child.worker_share
        self._num_blocks = num_blocks
        self._total: int | None = None
        self._cuts: list[int] | None = None

    @abstractmethod
    def _count(self) -> int:
        """How many rows this order has."""

    @abstractmethod
    def _row_numbers(self, positions: Positions) -> Positions:
        """Which rows of the child stand at these positions."""

    def schema(self) -> pa.Schema:
        return self.child.schema()

    def skipped(self) -> list[str]:
        return self.child.skipped()

    def input_files(self) -> list[str]:
        return self.child.input_files()

    def origin(self) -> Origin:
        return self.child.origin().then(self.describe())

    def seeds(self) -> tuple[int, ...]:
        return (self.seed, *self.child.seeds())

    def blocks(self) -> Sequence[Block]:
        return [
            Block(f"random_shuffle, rows {start} to {stop}", stop - start)
            for start, stop in pairwise(self._found_cuts())
        ]

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        start, stop = request.within(*self._found_cuts()[block : block + 2])
        wanted = self._row_numbers(np.arange(start, stop, dtype=np.int64))
        rows = self.child.resolved()
        assert isinstance(rows, StoredSource), rows
        yield from rows.take_in_chunks(wanted, request.columns, request.chunk_rows)

    def resolved(self) -> Self:
        child = self.child.resolved()
        return self if child is self.child else self._twin(child, self.epoch)

    def for_epoch(self, epoch: int) -> Self:
        return self if epoch == self.epoch else self._twin(self.child, epoch)

    def _twin(self, child: Source, epoch: int) -> Self:
        twin = copy.copy(self)
        twin.child, twin.epoch = child, epoch
        return twin

    def _child_rows(self) -> int:
        if self._total is None:
            self._total = sum(block.rows or 0 for block in self.child.blocks())
        return self._total

    def _found_cuts(self) -> list[int]:
        if self._cuts is None:
            rows = self._count()
            parts = self._num_blocks or -(-rows // default_block_rows(rows))
            self._cuts = even_cuts(rows, parts) if parts else [0]
        return self._cuts


class RowShuffled(_ComputedOrder):
    """Every row at a random place. The child's rows are stored once, for all epochs."""

    def describe(self) -> str:
        return f"random_shuffle(seed={self.seed})"

    def sliced(self, start: int, stop: int) -> ShuffledSlice:
        """The rows that stand at start to stop in the order of epoch 0."""
        rows = self._count()
        start = min(start, rows)
        return ShuffledSlice(self.child, self.seed, start, max(start, min(stop, rows)))

    def _count(self) -> int:
        return self._child_rows()

    def _row_numbers(self, positions: Positions) -> Positions:
        return permute(positions, self._child_rows(), self.seed, self.epoch)


class ShuffledSlice(_ComputedOrder):
    """A stretch of shuffled rows. Its rows are the same in every epoch, their order is not.

    Were it a stretch of each epoch's own order, the rows of a test set would get into the training set.
    """

    def __init__(self, child: Source, seed: int, start: int, stop: int) -> None:
        super().__init__(child, seed)
        self._start = start
        self._stop = stop

    def describe(self) -> str:
        return f"random_shuffle(seed={self.seed}) -> rows {self._start} to {self._stop}"

    def sliced(self, start: int, stop: int) -> ShuffledSlice:
        """The rows that stand at start to stop of these, in the order of epoch 0."""
        start = min(self._start + start, self._stop)
        return ShuffledSlice(self.child, self.seed, start, max(start, min(self._start + stop, self._stop)))

    def _count(self) -> int:
        return self._stop - self._start

    def _row_numbers(self, positions: Positions) -> Positions:
        if self.epoch:
            positions = permute(positions, self._count(), self.seed + self._start, self.epoch)
        return permute(self._start + positions, self._child_rows(), self.seed, 0)


class BlockShuffled(CombinedSource):
    """Whole blocks in a random order; nothing has to be stored."""

    def __init__(self, child: Plan, seed: int, epoch: int = 0) -> None:
        super().__init__((child,))
        self.seed = seed
        self._epoch = epoch
        self._order: Positions | None = None

    def describe(self) -> str:
        return f"{self.child.describe()} -> randomize_block_order(seed={self.seed})"

    def schema(self) -> pa.Schema:
        return self.child.schema()

    def seeds(self) -> tuple[int, ...]:
        return (self.seed, *super().seeds())

    def blocks(self) -> Sequence[Block]:
        blocks = self.child.blocks()
        return [blocks[index] for index in self._found_order()]

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        yield from self.child.read(int(self._found_order()[block]), request)

    def for_epoch(self, epoch: int) -> BlockShuffled:
        child = self.child.for_epoch(epoch)
        return self if epoch == self._epoch and child is self.child else BlockShuffled(child, self.seed, epoch)

    def _found_order(self) -> Positions:
        if self._order is None:
            self._order = block_permutation(len(self.child.blocks()), self.seed, self._epoch)
        return self._order
