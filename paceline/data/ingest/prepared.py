"""PreparedDataset, a dataset that is ready for workers: its order in each epoch, positions in it, and how it travels.

The order of rows in an epoch is a function of (seed, epoch), not of the number of workers. Rows are numbered by their
*position* in that order. A worker gets ranges of positions; `EpochOrder` says which rows of which blocks those are.

Plans travel by pickle, rows that are in memory as attachments (`Parcel`). Where an engine hands attachments over
without a copy, all workers map the same file without a name: no row goes through a pipe, and nothing is left on disk
when the last process is gone.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import cloudpickle
import numpy as np

from paceline.air.attachment import Attachment
from paceline.air.data_config import Uneven
from paceline.air.errors import DataError, SerializationError
from paceline.data.execution import Piece
from paceline.data.ingest.position import ReadPosition, merged
from paceline.data.ingest.ranges import Ranges
from paceline.data.operations.user_operation import UserOperation
from paceline.data.plan import Plan
from paceline.data.sources.computed import TableSource
from paceline.data.sources.shuffled import RowShuffled, block_permutation, permute
from paceline.data.store import StoredSource, in_file
from paceline.engine.serialization import dumps

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


@dataclass(frozen=True)
class PreparedDataset:
    """What a worker needs to read its share."""

    name: str
    plan: Plan
    """Its blocks' rows are known; it is not shuffled itself."""
    split: bool
    """Each worker has its share; otherwise each one has everything."""
    uneven: Uneven = "all"
    shuffle: Shuffle = "none"
    seed: int = 0
    mark: int = 0
    """Stands for all seeds inside the plan."""
    origin: Mapping[str, str] = field(default_factory=dict)
    """What stands for its files and for the steps from them to the rows."""

    @property
    def rows(self) -> int:
        return sum(self.plan.row_counts())

    @property
    def blocks(self) -> int:
        return len(self.plan.blocks())

    def misfit(self, position: ReadPosition) -> str | None:
        """Why a position was not taken in this dataset; None if it may have been."""
        return position.misfit(self.rows, self.blocks, self.shuffle, self.mark)

    def plan_of(self, seed: int, epoch: int) -> Plan:
        """The plan whose blocks `order_of` counts."""
        if self.shuffle == "rows":
            return Plan(RowShuffled(self.plan.source, seed).for_epoch(epoch), self.plan.operations)
        return self.plan.for_epoch(epoch)

    def order_of(self, seed: int, epoch: int) -> EpochOrder:
        """The order of the rows in one epoch."""
        return EpochOrder(tuple(self.plan_of(seed, epoch).row_counts()), self.shuffle, seed, epoch)


def origin_of(plan: Plan) -> dict[str, str]:
    """Hashes of a dataset's files and steps: a journal is no place for a million names.

    Seeds that the user has not chosen differ each time, and the order that they stand for is noticed elsewhere.
    """
    import xxhash

    origin = plan.origin()
    steps = [re.sub(r"seed=\d+", "seed", step) for step in origin.steps]
    return {
        name: xxhash.xxh3_64_hexdigest("\n".join(texts).encode("utf-8", "surrogateescape"))
        for name, texts in (("files", origin.files), ("steps", steps))
    }


RankState = Mapping[str, Mapping[str, Any]]
"""What one rank reports: dataset name -> position."""


def merge_states(ranks: Sequence[RankState | None], split: Mapping[str, bool]) -> dict[str, Any]:
    """What is stored with a checkpoint: one position per dataset, or one per rank where every rank reads everything."""
    stored: dict[str, Any] = {}
    for name, is_split in split.items():
        states = [None if rank is None else rank.get(name) for rank in ranks]
        if is_split:
            whole = merged(states)
            if whole is not None:
                stored[name] = whole
        elif any(state is not None for state in states):
            stored[name] = {"ranks": [None if state is None else dict(state) for state in states]}
    return stored


def state_for(stored: Mapping[str, Any], rank: int, workers: int) -> dict[str, Any] | None:
    """One dataset's stored position as a rank takes it up; None: from the start.

    A dataset that every rank reads whole is taken up where the rank itself was; ranks that are new take rank 0's place.
    """
    if "ranks" not in stored:
        return dict(stored)
    ranks = stored["ranks"]
    same = rank < len(ranks) and len(ranks) == workers and ranks[rank] is not None
    state = ranks[rank] if same else ranks[0]
    return None if state is None else dict(state)


def problem_with(stored: Any, dataset: PreparedDataset) -> str | None:
    """Why a stored position cannot be taken up with this dataset; None if it can."""
    try:
        states = [stored] if "ranks" not in stored else [each for each in stored["ranks"] if each is not None]
        positions = [ReadPosition.from_json(state) for state in states]
    except (DataError, TypeError, AttributeError, KeyError) as error:
        return f"the stored position cannot be read ({error})"
    if dataset.split == ("ranks" in stored):
        then, now = ("whole", "split") if dataset.split else ("split", "whole")
        return f"it was {then} among the workers then and is {now} now"
    problems = (dataset.misfit(position) for position in positions)
    return next((problem for problem in problems if problem is not None), None)


_BY_VALUE_BYTES = 64 * 1024
_ADVICE = (
    "What a function of a dataset refers to must be picklable: create locks, files and connections inside the "
    "function, or in the constructor of a callable class."
)


class Parcel:
    """Packed datasets: a pickle, and the rows that belong to it. It is part of the task that workers get."""

    def __init__(self, datasets: Mapping[str, PreparedDataset]) -> None:
        self.rows: list[Attachment] = []
        stream = io.BytesIO()
        try:
            _Packer(stream, self.rows).dump(dict(datasets))
        except Exception as error:
            for name, dataset in datasets.items():
                _name_the_function(name, dataset)
            raise SerializationError(f"The datasets cannot be sent to the workers: {error}. {_ADVICE}") from error
        self.content = stream.getvalue()

    def unpack(self) -> dict[str, PreparedDataset]:
        """The datasets, in the worker."""
        sources = [StoredSource.from_attachment(rows) for rows in self.rows]
        datasets: dict[str, PreparedDataset] = _Unpacker(io.BytesIO(self.content), sources).load()
        return datasets


def _name_the_function(name: str, dataset: PreparedDataset) -> None:
    """Raise for the function of a dataset that cannot be pickled; do nothing if all of them can."""
    for operation in dataset.plan.operations:
        if isinstance(operation, UserOperation):
            function = operation.work.function
            dumps(function.function, f"datasets[{name!r}]: {function.label}", advice=_ADVICE)
            given = {"fn_args": function.args, "fn_kwargs": function.kwargs}
            made_with = {
                "fn_constructor_args": function.constructor_args,
                "fn_constructor_kwargs": function.constructor_kwargs,
            }
            for argument, value in {**given, **made_with}.items():
                dumps(value, f"datasets[{name!r}]: {function.label}, {argument}", advice=_ADVICE)


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no type hints
    def __init__(self, stream: io.BytesIO, rows: list[Attachment]) -> None:
        super().__init__(stream)
        self._rows = rows
        self._numbers: dict[int, tuple[int, Any]] = {}

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        """A number in place of rows that are handed over as an attachment: (which one, rows per block)."""
        if not isinstance(value, TableSource | StoredSource):
            return None
        if isinstance(value, TableSource) and value.table.nbytes <= _BY_VALUE_BYTES:
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._rows), value
            self._rows.append(in_file(value))
        return self._numbers[id(value)][0], value.block_rows


class _Unpacker(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, sources: Sequence[StoredSource]) -> None:
        super().__init__(stream)
        self._sources = sources

    def persistent_load(self, number: Any) -> StoredSource:
        index, block_rows = number
        source: StoredSource = self._sources[index].with_block_rows(block_rows)
        return source
