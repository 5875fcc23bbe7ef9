"""DataIterator: a worker's part of a dataset, read epoch by epoch, that always knows where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import DataError
from paceline.air.resources import usable_cores
from paceline.data.dataset_base import named_after_class
from paceline.data.dataset_batches import Batches
from paceline.data.epochs import BatchOptions, Epoch, IterationStats, PlanEpoch
from paceline.data.ingest import ranges as rs
from paceline.data.ingest.position import (
    READ_AHEAD,
    LocalShuffle,
    ReadPosition,
    Shares,
    merged,
    remaining_in,
    share_epoch,
)
from paceline.data.ingest.prepared import PreparedDataset
from paceline.data.uneven import batches_of_all, check_form, joined, padded

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.dataset import Dataset


@named_after_class
class DataIterator(Batches):
    """What get_dataset_shard() gives. Each pass over it is the next epoch.

    A pass that was begun before the last checkpoint goes on, after a failure, with the first
    row that had not been handed out. A pass that is left early (`break`) has ended its epoch.
    """

    def __init__(self, dataset: PreparedDataset, rank: int = 0, workers: int = 1, threads: int | None = None) -> None:
        self._dataset = dataset
        self._rank = rank if dataset.split else 0
        self._workers = workers if dataset.split else 1
        self._threads = threads or usable_cores()
        self._position = self._start_of(0, dataset.seed)
        self._yielded: int | None = None
        """Rows that the current pass has handed out of this rank's share of the current leg; None: there is none."""
        self._current: Epoch | None = None
        self._read_ahead = False
        """The newest pass is read ahead of its use: until it ends, the position is where it began, so that no row is
        left out after a failure."""
        self._times: int | None = None
        """How many epochs iter_epochs() has where that is not said."""
        self._expects_all_epochs = False
        """repeat(n) was called, but not iter_epochs(): the caller may take one pass for all n."""
        self._stats = IterationStats(source=self._label())

    @classmethod
    def over(cls, dataset: Dataset) -> DataIterator:
        """All rows of a dataset, as the only worker has them."""
        from paceline.data.ingest.prepare import prepared

        return cls(prepared("dataset", dataset))

    # -- where it is ----------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of the current pass, or of the next one if none is under way; the first is 0."""
        return self._position.epoch

    def state_dict(self) -> dict[str, Any]:
        """The position as a few plain integers; stored with every checkpoint that is reported."""
        position = self._position
        if self._yielded is not None:
            leg = position.legs[-1]
            yielded = list(leg.yielded)
            yielded[self._rank] = self._yielded
            position = replace(position, legs=(*position.legs[:-1], replace(leg, yielded=tuple(yielded))))
        whose = {"rank": self._rank, "workers": self._workers}
        return {**position.as_json(), **whose, **({READ_AHEAD: True} if self._read_ahead else {})}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a position: this rank's own, or the list of all ranks' (needed if their number has changed)."""
        if isinstance(state, Sequence):
            _check_all_are_there(state)
        whole = merged(state) if isinstance(state, Sequence) else dict(state)
        if whole is None:
            raise DataError("load_state_dict: the list of states is empty.")
        position = ReadPosition.from_json(whole)
        misfit = self._dataset.misfit(position)
        if misfit is not None:
            raise DataError(f"The state does not fit the dataset {self._dataset.name!r}: {misfit}.")
        position = replace(position, equal=self._dataset.uneven == "equal")
        if position.legs and whole.get("workers", self._workers) != self._workers:
            raise DataError(
                f"The state is that of one of {whole['workers']} workers, and there are {self._workers} now: "
                "pass the list of all their states."
            )
        if position.legs and whole.get("rank", self._rank) != self._rank:
            raise DataError(
                f"The state is that of rank {whole['rank']}, and this is rank {self._rank}, which reads other rows: "
                "keep each rank's own state, or pass the list of all their states."
            )
        if position.legs and not remaining_in(position):  # its last row was handed out: the epoch is over
            position = position.next_epoch()
        self._position, self._yielded, self._current, self._read_ahead = position, None, None, False

    def rows_left_out(self, epoch: int | None = None) -> list[int]:
        """Numbers of the rows (counted from 0 through the dataset) that no rank reads in that epoch, or in this one."""
        if epoch is None or epoch == self.epoch:
            epoch, legs = self.epoch, self._position.legs
            shares = self._shares(legs[-1].shuffle if legs else LocalShuffle())
        else:
            shares = self._fresh_shares(epoch)
        order = self._dataset.order_of(self._position.seed, epoch)
        return sorted(int(row) for rows in order.row_numbers(shares.left_out, 65_536) for row in rows)

    # -- what it is -----------------------------------------------------------------------

    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._dataset.plan.schema()

    def count(self) -> int:
        """Rows of a whole pass of this rank."""
        return rs.length(self._fresh_shares(self.epoch).parts[self._rank])

    def rows_left(self) -> int:
        """Rows that this rank has not been given yet of the current pass, or of the next one if none is under way."""
        legs = self._position.legs
        shares = self._shares(legs[-1].shuffle if legs else LocalShuffle())
        share = rs.length(shares.parts[self._rank])
        return share - min(share, shares.position.legs[-1].yielded[self._rank])

    def materialize(self) -> Dataset:
        """The rows of this rank's next pass, read now and kept, as a dataset; not counted as a pass."""
        from paceline.data.dataset import Dataset
        from paceline.data.store import store

        rows = store(self.look(), self.schema())
        rows.worker_share = self._dataset.split
        return Dataset(rows)

    def look(
        self, columns: Sequence[str] | None = None, span: tuple[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of this rank's next pass, or those numbered `span` of the dataset, in portions.

        Not counted as a pass: looking again gives the same rows.
        """
        options = BatchOptions(batch_size=None)
        epoch = self._begin_look(options, None if columns is None else tuple(columns), span)
        try:
            yield from epoch.chunks()
        finally:
            epoch.end()

    @property
    def is_split(self) -> bool:
        """Each worker has a part of the dataset; otherwise each one has all of it."""
        return self._dataset.split

    @property
    def rank(self) -> int:
        """Which of the parts this is."""
        return self._rank

    @property
    def workers(self) -> int:
        """How many parts there are."""
        return self._workers

    @property
    def _sharers(self) -> int:
        return self._workers

    def count_all(self) -> int:
        """Rows of the dataset, those of the other ranks included."""
        return self._dataset.rows

    def stats(self) -> str:
        """Where the time of the last pass went."""
        return self._stats.to_string()

    def iter_epochs(self, max_epoch: int = -1) -> Iterator[DataIterator]:
        """This iterator once per epoch, from the current one on: `for epoch in shard.iter_epochs(10): ...`.

        Without a number, as many epochs as repeat() was given; without that, no end.
        """
        last = max_epoch if max_epoch >= 0 else self._times
        self._expects_all_epochs = False
        while last is None or self.epoch < last:
            before = self.epoch
            yield self
            if self.epoch == before:  # the caller did not iterate: do not spin for ever on one epoch
                return

    def repeat(self, times: int | None = None) -> DataIterator:
        """Itself: every pass over it is an epoch of its own already. `times` is where iter_epochs() ends."""
        self._times = times
        self._expects_all_epochs = times is not None and times > 1
        return self

    def window(self, *, blocks_per_window: int = 10, bytes_per_window: int | None = None) -> DataIterator:
        """Itself: rows stream in windows of their own already."""
        return self

    def __getattr__(self, name: str) -> Any:
        from paceline.data.dataset import Dataset

        meant = name.removesuffix("_each_window")
        if not name.startswith("_") and hasattr(Dataset, meant):
            raise AttributeError(
                f"A shard has no {name}(): call {meant}() on the dataset, before the trainer gets it and before "
                "repeat() or window(). For the rows of one worker, call it on shard.materialize().",
                name=name,  # without obj=, or Python would append a guess of its own
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a shard is iterated with iter_batches(), iter_torch_batches() or iter_rows()")

    def __len__(self) -> int:
        raise TypeError("len() of a shard could mean rows or batches: use count(), or len(shard.iter_batches(...))")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"DataIterator({self._label()}, epoch={self.epoch})"

    def _label(self) -> str:
        part = f"rank {self._rank} of {self._workers}" if self._dataset.split else "whole"
        return f"{self._dataset.name} ({part}): {self._dataset.plan.describe()}"

    # -- passes ---------------------------------------------------------------------------

    def _begin(self, options: BatchOptions) -> Epoch:
        if self._current is not None:  # a pass that nobody has ended: the new one is the next epoch
            self._ended(self._current)
        if self._expects_all_epochs:
            self._expects_all_epochs = False
            warn_at_users_line(
                f"repeat({self._times}): one pass is one of the {self._times} epochs. For all of them: "
                "for epoch in ....iter_epochs(): for batch in epoch.iter_batches(): ..."
            )
        shares = self._shares(self._local_shuffle(options))
        self._position = shares.position
        self._yielded = shares.position.legs[-1].yielded[self._rank]
        self._stats = IterationStats(source=self._label(), notes=self._dataset.plan.notes())
        self._read_ahead = options.read_ahead
        self._current = _ShardEpoch(self, shares, options)
        return self._current

    def _joined(self) -> AbstractContextManager[Callable[[], None] | None]:
        is_alone = self._workers == 1
        return nullcontext() if is_alone or self._dataset.uneven != "join" else joined(self._dataset.name)

    def _check_form(self, called: str) -> None:
        check_form(called, self._dataset.name, self._dataset.uneven, self._workers)

    def _begin_look(
        self, options: BatchOptions, columns: tuple[str, ...] | None = None, span: tuple[int, int] | None = None
    ) -> Epoch:
        shares = self._shares(self._local_shuffle(options))
        plan, ranges, _ = self._what_to_read(shares, options)
        order = self._dataset.order_of(self._position.seed, self.epoch)
        pieces = order.pieces(ranges if span is None else rs.joined([span]))
        return PlanEpoch(plan, pieces, options, IterationStats(), columns=columns, threads=self._threads)

    def _start_of(self, epoch: int, seed: int) -> ReadPosition:
        data = self._dataset
        equal = data.uneven == "equal"
        return ReadPosition(epoch, seed, data.rows, data.blocks, shuffle=data.shuffle, equal=equal, mark=data.mark)

    def _fresh_shares(self, epoch: int) -> Shares:
        """Of an epoch of which nothing has been read."""
        start = self._start_of(epoch, self._position.seed)
        return share_epoch(start, self._workers, self._dataset.uneven, LocalShuffle())

    def _shares(self, shuffle: LocalShuffle) -> Shares:
        position = self._position
        if self._yielded is not None:
            position = ReadPosition.from_json(self.state_dict())
        return share_epoch(position, self._workers, self._dataset.uneven, shuffle)

    def _local_shuffle(self, options: BatchOptions) -> LocalShuffle:
        if not options.window:
            return LocalShuffle()
        return LocalShuffle(options.window, self._position.seed if options.window_seed is None else options.window_seed)

    def _what_to_read(self, shares: Shares, options: BatchOptions) -> tuple[Any, rs.Ranges, tuple[int, int]]:
        """Plan, positions to read, and (first window, rows of it that were handed out already)."""
        share = shares.parts[self._rank]
        yielded = min(shares.position.legs[-1].yielded[self._rank], rs.length(share))
        window, skip = divmod(yielded, options.window) if options.window else (0, 0)
        start = window * options.window if options.window else yielded
        plan = self._dataset.plan_of(shares.position.seed, shares.position.epoch)
        return plan, rs.part(share, start, rs.length(share)), (window, skip)

    def _all_chunks(self) -> Iterator[pa.RecordBatch]:
        return self.look()

    def _rows_per_pass(self) -> int | None:
        if self._dataset.uneven == "pad_mask":  # of each rank, until batches are filled up
            return max(rs.length(part) for part in self._fresh_shares(self.epoch).parts)
        return self.count()

    def _gave(self, epoch: Epoch, rows: int) -> None:
        if epoch is self._current and self._yielded is not None and not self._read_ahead:
            self._yielded += rows

    def _ended(self, epoch: Epoch) -> None:
        if epoch is self._current:
            self._current, self._yielded = None, None
            self._position = self._position.next_epoch()


DatasetIterator = DataIterator
DatasetPipeline = DataIterator  # what repeat() and window() give
"""The old name."""


def _check_all_are_there(states: Sequence[Mapping[str, Any]]) -> None:
    """A list of states must be that of all ranks, in their order: a place in it stands for a rank."""
    for place, state in enumerate(states):
        rank, workers = state.get("rank", place), state.get("workers", len(states))
        if (rank, workers) != (place, len(states)):
            raise DataError(
                f"load_state_dict: of {len(states)} states, number {place} is that of rank {rank} of {workers} "
                "worker(s). Pass those of all ranks, in the order of ranks."
            )


def _size_to_pad(dataset: str, options: BatchOptions) -> int:
    if options.batch_size is None or options.drop_last:
        given = "drop_last=True" if options.drop_last else "batch_size=None"
        raise DataError(
            f'dataset {dataset!r}: uneven="pad_mask" fills up batches to batch_size rows, so it cannot be combined '
            f"with {given}."
        )
    return options.batch_size


class _ShardEpoch(PlanEpoch):
    """A pass that tells its iterator how far it is."""

    def __init__(self, owner: DataIterator, shares: Shares, options: BatchOptions) -> None:
        plan, ranges, window = owner._what_to_read(shares, options)
        position = owner._position
        order = owner._dataset.order_of(position.seed, position.epoch)
        window_order = None
        if options.window:
            share = owner._shares(owner._local_shuffle(options)).parts[owner._rank]
            window_order = owner._local_shuffle(options).order(share, position.epoch, window[0])
        super().__init__(
            plan,
            order.pieces(ranges),
            options,
            owner._stats,
            window_order=window_order,
            window_skip=window[1],
            threads=owner._threads,
        )
        self._owner = owner
        self._real_rows = rs.length(ranges) - window[1]
        """Of this dataset; those that fill up batches come after them."""
        self._padded_rows: int | None = None
        if owner._dataset.uneven == "pad_mask":
            self._padded_rows = batches_of_all(shares, _size_to_pad(owner._dataset.name, options)) * (
                options.batch_size or 1
            )
            self.fresh = False

    def chunks(self) -> Iterator[pa.RecordBatch]:
        rows = super().chunks()
        if self._padded_rows is None:
            return rows
        return padded(rows, self._padded_rows, lambda: next(self._owner.look(span=(0, 1))))

    def yielded(self, rows: int) -> None:
        rows = min(rows, self._real_rows)
        self._real_rows -= rows
        self._owner._gave(self, rows)

    def end(self) -> None:
        super().end()
        self._owner._ended(self)
