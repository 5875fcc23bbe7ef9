"""iter_batches and its relatives, the same for a whole dataset and for a worker's shard."""

from __future__ import annotations

import itertools
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError, DataError
from paceline.data.iteration.background import Background
from paceline.data.iteration.batching import runs
from paceline.data.iteration.options import DEFAULT_BATCH_ROWS, BatchOptions

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.iteration.stats import IterationStats

B = TypeVar("B")


class Epoch(ABC):
    """One pass over the rows: made by iter(), ended when it is exhausted or left."""

    fresh: bool = False
    """Its chunks are nobody else's memory."""
    stats: IterationStats

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """The rows in their final order."""

    def yielded(self, rows: int) -> None:  # noqa: B027  # most passes need not know
        """The user's code has been given that many more rows."""

    @abstractmethod
    def end(self) -> None:
        """No more rows will be taken."""


Cutter = Callable[["Chunk", int, bool], Iterator[B]]
"""(chunk of n x batch rows, batch rows, copy) -> its batches"""


class BatchIterable(Generic[B]):
    """Every iter() is a new pass: `for epoch in ...: for batch in batches: ...` works with one of these.

    next() works too, on a pass of its own.
    """

    def __init__(
        self,
        owner: Batches,
        options: BatchOptions,
        cut: Cutter[B],
        in_background: bool = False,
    ) -> None:
        self.owner = owner
        """What these are batches of: a dataset, or a worker's part of one."""
        self.options = options
        self._cut = cut
        self._in_background = in_background and options.prefetch_batches > 0
        self._own: Iterator[B] | None = None
        self._newest: weakref.ref[Generator[B, None, None]] | None = None
        """The pass that was begun last; it is the caller's, and ends when they let go of it."""

    def __iter__(self) -> Iterator[B]:
        if self._own is not None:  # what next() has begun is gone on with
            own, self._own = self._own, None
            return own
        return self._new_pass()

    def __next__(self) -> B:
        if self._own is None:
            self._own = self._new_pass()
        return next(self._own)

    def end_pass(self) -> None:
        """End the pass that was begun last, as leaving its loop does; for loops that keep hold of it."""
        newest = self._newest() if self._newest is not None else None
        if newest is not None:
            newest.close()
        self._own = None

    @property
    def rows(self) -> int | None:
        """Of a whole pass, where their number is known without reading."""
        return self.owner._rows_per_pass()

    def __len__(self) -> int:
        """Batches of a whole pass, where the number of rows is known without reading."""
        rows, size = self.rows, self.options.batch_size
        if rows is None or size is None:
            raise TypeError("the number of batches is not known before they have been read")
        return rows // size if self.options.drop_last else -(-rows // size)

    def __getitems__(self, numbers: list[int]) -> NoReturn:
        """What a DataLoader of torch asks for first: it takes everything that has a length for a list of rows."""
        raise ConfigError(
            "A DataLoader asks for rows by number, and iter_torch_batches() gives complete batches: iterate over them "
            "without a DataLoader. If they are a dataset of a transformers.Trainer, call prepare_trainer(trainer) of "
            "paceline.train.huggingface.transformers before trainer.train()."
        )

    def _new_pass(self) -> Iterator[B]:
        begun = self._pass()
        self._newest = weakref.ref(begun)
        return begun

    def _pass(self) -> Generator[B, None, None]:
        epoch = self.owner._begin(self.options)
        stats = epoch.stats
        began = time.perf_counter()
        sized = self._sized_batches(epoch)
        batches = Background(sized, self.options.prefetch_batches) if self._in_background else sized
        try:
            asked = began
            for batch, rows in batches:
                given = time.perf_counter()
                if stats.first_batch_s is None:
                    stats.first_batch_s = given - began
                stats.convert_s += given - asked
                stats.batches += 1
                stats.rows += rows
                epoch.yielded(rows)
                yield batch
                asked = time.perf_counter()
                stats.user_s += asked - given
        finally:
            if isinstance(batches, Background):
                batches.close()
            epoch.end()
            stats.total_s = time.perf_counter() - began
            stats.convert_s = max(0.0, stats.convert_s - stats.read_wait_s)

    def _sized_batches(self, epoch: Epoch) -> Iterator[tuple[B, int]]:
        size = self.options.batch_size
        if size is None:
            for chunk in epoch.chunks():
                for batch in self._cut(chunk, chunk.num_rows, not epoch.fresh):
                    yield batch, chunk.num_rows
            return
        for run in runs(epoch.chunks(), size, self.options.drop_last):
            left = run.num_rows
            for batch in self._cut(run, size, not epoch.fresh):
                yield batch, min(size, left)
                left -= size


class Batches(ABC):
    """The methods that hand out rows. What they iterate over, `_begin` says."""

    @abstractmethod
    def _begin(self, options: BatchOptions) -> Epoch:
        """Start one pass."""

    def _begin_look(self, options: BatchOptions) -> Epoch:
        """Start a pass that only looks at the rows: it does not count as one of training."""
        return self._begin(options)

    @abstractmethod
    def _rows_per_pass(self) -> int | None:
        """Rows of a pass, if that is known without reading."""

    @abstractmethod
    def schema(self) -> Any:
        """Names and types of the columns."""

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = DEFAULT_BATCH_ROWS,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_blocks: int | None = None,
        _collate_fn: Callable[[Any], Any] | None = None,
    ) -> BatchIterable[Any]:
        """Batches as dicts of numpy arrays ("numpy", the default), pandas frames or Arrow tables.

        Only the last batch of a pass may be shorter than `batch_size`. What is given out is yours: writing to
        it changes nothing else. `prefetch_blocks` is the old spelling of `prefetch_batches`.
        """
        from paceline.data.formats import check_batch_format, to_batch

        if prefetch_blocks is not None:
            prefetch_batches = prefetch_blocks
        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )
        chosen = check_batch_format(batch_format)

        def cut(run: Chunk, rows: int, copy: bool) -> Iterator[Any]:
            for start in range(0, run.num_rows, max(1, rows)):
                batch = to_batch(run.slice(start, rows), chosen, copy=copy, own=not copy)
                yield batch if _collate_fn is None else _collated(_collate_fn, batch)

        return BatchIterable(self, options, cut, in_background=_collate_fn is not None)

    def iter_rows(self, *, prefetch_blocks: int = 1) -> Iterator[dict[str, Any]]:
        """One dict per row."""
        return _rows_of(self._begin, BatchOptions(batch_size=None, prefetch_batches=prefetch_blocks))

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = DEFAULT_BATCH_ROWS,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> BatchIterable[Any]:
        """Batches as dicts of torch tensors, or what `collate_fn` makes of a dict of numpy arrays.

        device="auto" is the GPU that the worker was given, if it has one. `dtypes` is one torch dtype for all
        columns or a dict of them.
        """
        from paceline.data import torch_batches
        from paceline.data.formats import to_batch

        if collate_fn is not None and dtypes is not None:
            raise DataError("iter_torch_batches: collate_fn makes the tensors itself, so dtypes= has no use with it.")
        if collate_fn is not None and not callable(collate_fn):
            raise ConfigError(f"collate_fn is {collate_fn!r}: give a function that gets a dict of numpy arrays.")
        dtypes = torch_batches.checked_dtypes(dtypes)
        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )

        def collated(run: Chunk, rows: int, copy: bool) -> Iterator[Any]:
            assert collate_fn is not None
            for start in range(0, run.num_rows, max(1, rows)):
                columns: Any = to_batch(run.slice(start, rows), "numpy", copy=copy, own=not copy)
                yield torch_batches.to_device(_collated(collate_fn, columns), device)

        def cut(run: Chunk, rows: int, copy: bool) -> Iterator[Any]:
            for batch in torch_batches.split(run, rows, dtypes, copy):
                yield torch_batches.to_device(batch, device)

        chosen = cut if collate_fn is None else collated
        return BatchIterable(self, options, chosen, in_background=collate_fn is not None)

    def iter_tf_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = DEFAULT_BATCH_ROWS,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> BatchIterable[Any]:
        """Batches as dicts of TensorFlow tensors."""
        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )
        return self._tf_batches(options, dtypes)

    def _tf_batches(self, options: BatchOptions, dtypes: Any = None) -> BatchIterable[Any]:
        from paceline.data import tf_batches

        def cut(run: Chunk, rows: int, copy: bool) -> Iterator[Any]:
            for start in range(0, run.num_rows, max(1, rows)):
                yield tf_batches.tf_columns(run.slice(start, rows), dtypes)

        return BatchIterable(self, options, cut)

    def to_tf(
        self,
        feature_columns: str | list[str],
        label_columns: str | list[str],
        *,
        prefetch_batches: int = 1,
        batch_size: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Any:
        """A tf.data.Dataset of (features, labels); every iteration over it is a new pass.

        TensorFlow reads ahead, so a run that is resumed in the middle of a pass begins that pass anew.
        """
        from paceline.data import tf_batches

        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )
        batches = self._tf_batches(replace(options, read_ahead=True))
        return tf_batches.to_tf_dataset(batches, self.schema(), feature_columns, label_columns)

    def to_torch(
        self,
        *,
        label_column: str | None = None,
        feature_columns: list[str] | Mapping[str, list[str]] | None = None,
        label_column_dtype: Any = None,
        feature_column_dtypes: Any = None,
        batch_size: int = 1,
        prefetch_batches: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        unsqueeze_label_tensor: bool = True,
        unsqueeze_feature_tensors: bool = True,
    ) -> Any:
        """A torch IterableDataset of (features, label) batches; every iteration over it is a new pass."""
        from paceline.data import torch_batches

        batches = self.iter_torch_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            device="cpu",
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
        return torch_batches.features_and_label(
            batches,
            label_column=label_column,
            feature_columns=feature_columns,
            label_column_dtype=label_column_dtype,
            feature_column_dtypes=feature_column_dtypes,
            unsqueeze_label=unsqueeze_label_tensor,
            unsqueeze_features=unsqueeze_feature_tensors,
        )

    # -- looking at rows ------------------------------------------------------------------

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """The first rows."""
        limit = whole_number(limit, "limit", least=0)
        rows = _rows_of(self._begin_look, BatchOptions(batch_size=None, prefetch_batches=0, most_rows=limit))
        return list(itertools.islice(rows, limit))

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """All rows; more than `limit` are refused."""
        all_rows = _rows_of(self._begin_look, BatchOptions(batch_size=None))
        rows = list(itertools.islice(all_rows, None if limit is None else limit + 1))
        if limit is not None and len(rows) > limit:
            raise DataError(f"take_all(limit={limit}): there are more rows than that.")
        return rows

    def take_batch(self, batch_size: int = 20, *, batch_format: str | None = "default") -> Any:
        """The first rows as one batch."""
        from paceline.data.formats import check_batch_format, to_batch

        chosen = check_batch_format(batch_format)
        options = replace(BatchOptions.checked(batch_size, 0, False, None, None), most_rows=batch_size)
        epoch = self._begin_look(options)
        try:
            for run in runs(epoch.chunks(), batch_size, drop_last=False):
                return to_batch(run.slice(0, batch_size), chosen, copy=True)
        finally:
            epoch.end()
        raise DataError("take_batch: there are no rows.")

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def default_batch_format(self) -> type:
        """What a batch is where no format is asked for: a dict, of numpy arrays by column."""
        return dict

    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema().names)


def _collated(collate_fn: Callable[[Any], Any], batch: Any) -> Any:
    try:
        return collate_fn(batch)
    except Exception as error:
        name = getattr(collate_fn, "__qualname__", type(collate_fn).__qualname__)
        given = f" It was given a dict of numpy arrays: {list(batch)}." if isinstance(batch, dict) else ""
        error.add_note(f"This happened in collate_fn={name}.{given}")
        raise


def _rows_of(begin: Callable[[BatchOptions], Epoch], options: BatchOptions) -> Iterator[dict[str, Any]]:
    from paceline.data.formats import to_rows

    epoch = begin(options)
    began = time.perf_counter()
    try:
        for chunk in epoch.chunks():
            for row in to_rows(chunk):
                epoch.yielded(1)
                epoch.stats.rows += 1
                yield row
    finally:
        epoch.end()
        epoch.stats.batches = 1
        epoch.stats.total_s = time.perf_counter() - began
