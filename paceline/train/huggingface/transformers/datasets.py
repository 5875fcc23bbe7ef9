"""Datasets of a run as the iterable datasets that a `transformers.Trainer` takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
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

    from paceline.data.iteration.batches import BatchIterable
    from paceline.data.iterator import DataIterator

SKIPPED = object()
"""Stands for a row of an epoch that is gone on with: handed out before the checkpoint was made."""

_ROWS_READ_AT_ONCE = 64


class Resumable(IterableDataset[Any]):
    """Can be gone on with in the middle of a pass.

    The trainer passes over the batches that it has trained on already; the shard of the run begins after
    them. So that both agree, the trainer is given something else to pass over.
    """

    def __init__(self, shard: DataIterator | None) -> None:
        self.shard = shard
        self._to_skip = 0
        self._to_drop = 0

    def skip(self, batches: int) -> None:
        """The trainer will pass over so many batches of the next pass."""
        self._to_skip = batches
        stands_behind_them = self.shard is not None and bool(self.shard.state_dict()["legs"])
        self._to_drop = 0 if stands_behind_them else batches

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
        super().__init__(shard)
        self.batch_size = _ROWS_READ_AT_ONCE
        """That of the loader, which sets it: what was read is then what was trained on. Checkpoints rely on that."""

    def __len__(self) -> int:
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
        self._rows = len(batches) * batch_size if batches._options.drop_last else batches._rows()

    def __len__(self) -> int:
        return self._rows or 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def batches(self, batch_size: int, collate: Callable[[list[Any]], Any]) -> Iterator[Callable[[], Any]]:
        for batch in self._batches:
            yield partial(_itself, batch)


class ReadyBatches(Resumable):
    """Batches that are complete: what `iter_torch_batches()` gives, or the like."""

    def __init__(self, batches: BatchIterable[Any]) -> None:
        super().__init__(shard_behind(batches))
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

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

    owner = getattr(batches._begin, "__self__", None)
    return owner if isinstance(owner, DataIterator) else None


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
