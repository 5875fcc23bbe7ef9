"""Datasets of a run as the iterable datasets that a `transformers.Trainer` takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from paceline.air.errors import DataError
from paceline.data.formats import to_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.epochs import BatchIterable
    from paceline.data.iterator import DataIterator

SKIPPED = object()
"""Stands for a row of a resumed epoch that was handed out before the checkpoint was made."""

_ROWS_READ_AT_ONCE = 64


class Resumable(IterableDataset[Any], ABC):
    """A pass over it can be resumed in the middle.

    The trainer passes over the batches that it has trained on already; the shard of the run begins after
    them. So that both agree, the trainer is given something else to pass over.
    """

    def __init__(self, shard: DataIterator | None, batch_size: int) -> None:
        self.shard = shard
        self.batch_size = batch_size
        self._to_skip = 0
        self._to_drop = 0

    @property
    @abstractmethod
    def rows(self) -> int:
        """Of a pass of this worker."""

    def begin_pass(self, epoch: int | None = None) -> None:
        """The trainer begins a whole pass; without a number, the one that the shard is at."""
        if self.shard is None:
            return
        state = self.shard.state_dict()
        if state["legs"] or epoch not in (None, state["epoch"]):
            state.pop("later", None)
            self.shard.load_state_dict({**state, "epoch": state["epoch"] if epoch is None else epoch, "legs": []})

    def go_to(self, epoch: int, batches: int, per_epoch: int) -> bool:
        """The trainer goes on in that epoch, after so many of its batches; False: the shard is at another place.

        A shard that has not been read does not know of an earlier run: its batches are then read and dropped.
        """
        state = None if self.shard is None else self.shard.state_dict()
        is_new = state is None or (state["epoch"] == 0 and not state["legs"])
        if state is not None and not is_new and self._batches_before(state, per_epoch) != epoch * per_epoch + batches:
            return False
        if is_new or batches == 0:
            self.begin_pass(epoch)
        self._to_skip, self._to_drop = batches, batches if is_new else 0
        return True

    def _batches_before(self, state: Mapping[str, Any], per_epoch: int) -> int | None:
        """How many batches of this size were handed out up to that position; None: it is not between two of them."""
        assert self.shard is not None
        before = int(state["epoch"]) * per_epoch
        if not state["legs"]:
            return before
        workers, handed_out, *_ = state["legs"][0]
        if len(state["legs"]) > 1 or workers != self.shard.workers:
            return None
        batches, rest = divmod(handed_out[self.shard.rank], self.batch_size)
        if rest and handed_out[self.shard.rank] < self.rows:
            return None
        return int(before + batches + (rest > 0))

    def _take_skipped(self) -> tuple[int, int]:
        """How many batches to replace, and how many to read and drop because the shard does not know of them."""
        taken = self._to_skip, self._to_drop
        self._to_skip = self._to_drop = 0
        return taken


class WorkerRows(Resumable):
    """The rows of this worker, one dict each, for training. Each pass is the next epoch.

    Values are Python's own, as the collators of Transformers expect them; cells of tensor columns are tensors.
    """

    shard: DataIterator

    def __init__(self, shard: DataIterator) -> None:
        # The loader sets its own: what was read is then what was trained on. Checkpoints rely on that.
        super().__init__(shard, batch_size=_ROWS_READ_AT_ONCE)

    def __len__(self) -> int:
        return self.rows

    @property
    def rows(self) -> int:
        return self.shard.count()

    def __iter__(self) -> Iterator[Any]:
        refuse_loading_processes()
        skip, drop = self._take_skipped()
        for _ in range(skip * self.batch_size):
            yield SKIPPED
        tables = self.shard.iter_batches(batch_size=self.batch_size, batch_format="pyarrow")
        for table in islice(tables, drop, None):
            yield from rows_of(table)


class Evaluation(IterableDataset[Any], ABC):
    """An evaluation set, of which every worker has all rows; its len() is their number."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batches(self, batch_size: int, collate: Callable[[list[Any]], Any]) -> Iterator[Callable[[], Any]]:
        """For each batch a function that makes it: most are another worker's, and need not be made."""


class EvaluationRows(Evaluation):
    """The rows of an evaluation set, one dict each."""

    def __init__(self, shard: DataIterator) -> None:
        self.shard = shard

    def __len__(self) -> int:
        return self.shard.count()

    def __iter__(self) -> Iterator[Any]:
        refuse_loading_processes()
        for table in self.shard.iter_batches(batch_size=_ROWS_READ_AT_ONCE, batch_format="pyarrow"):
            yield from rows_of(table)

    def batches(self, batch_size: int, collate: Callable[[list[Any]], Any]) -> Iterator[Callable[[], Any]]:
        for table in self.shard.iter_batches(batch_size=batch_size, batch_format="pyarrow"):
            yield partial(_collated, table, collate)


class ReadyEvaluation(Evaluation):
    """An evaluation set in complete batches: what `iter_torch_batches()` of a shard gives."""

    def __init__(self, batches: BatchIterable[Any], batch_size: int) -> None:
        self._batches = batches
        self._rows = len(batches) * batch_size if batches.options.drop_last else batches.rows

    def __len__(self) -> int:
        return self._rows or 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def batches(self, batch_size: int, collate: Callable[[list[Any]], Any]) -> Iterator[Callable[[], Any]]:
        for batch in self._batches:
            yield partial(_itself, batch)


class ReadyBatches(Resumable):
    """Batches that are complete: what `iter_torch_batches()` gives."""

    def __init__(self, batches: BatchIterable[Any], batch_size: int) -> None:
        super().__init__(shard_behind(batches), batch_size)
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def rows(self) -> int:
        return self.batches.rows or 0

    def __iter__(self) -> Iterator[Any]:
        refuse_loading_processes()
        skip, drop = self._take_skipped()
        return chain(repeat({}, skip), islice(self.batches, drop, None))


def _collated(table: pa.Table, collate: Callable[[list[Any]], Any]) -> Any:
    return collate(list(rows_of(table)))


def _itself(batch: Any) -> Any:
    return batch


def shard_behind(batches: BatchIterable[Any]) -> DataIterator | None:
    """Whose batches these are; None: a dataset's, which has no position."""
    from paceline.data.iterator import DataIterator

    return batches.owner if isinstance(batches.owner, DataIterator) else None


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a table as dicts."""
    for chunk in table.to_batches():
        for row in to_rows(chunk):
            for name, cell in row.items():
                if isinstance(cell, np.ndarray):
                    row[name] = torch.from_numpy(cell)
            yield row


def refuse_loading_processes() -> None:
    if get_worker_info() is not None:
        raise DataError(
            "The datasets of a run cannot be read by the processes of a DataLoader: each of them would give every row. "
            "Use TrainingArguments(dataloader_num_workers=0); rows are read ahead by threads."
        )
