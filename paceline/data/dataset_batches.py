"""iter_batches and its relatives, the same for a whole dataset and for a worker's shard."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError, DataError
from paceline.data.epochs import DEFAULT_BATCH_ROWS, BatchIterable, BatchOptions, Epoch, runs
from paceline.data.global_batch import rows_per_worker

if TYPE_CHECKING:
    import pandas as pd

    from paceline.air.timing import BatchClock
    from paceline.data.block import Chunk


class Batches(ABC):
    """The methods that hand out rows. What they iterate over, `_begin` says."""

    clock: BatchClock | None = None
    """Told about each batch that a training loop takes."""

    @abstractmethod
    def _begin(self, options: BatchOptions) -> Epoch:
        """Start one pass."""

    def _begin_look(self, options: BatchOptions) -> Epoch:
        """Start a pass that only looks at the rows: it does not count as one of training."""
        return self._begin(options)

    @abstractmethod
    def _rows_per_pass(self) -> int | None:
        """Rows of a pass, if that is known without reading."""

    @property
    def _sharers(self) -> int:
        """How many workers read a batch together, each its part."""
        return 1

    def _joined(self) -> AbstractContextManager[Callable[[], None] | None]:
        """Around a pass over batches. What it gives is called before each of them."""
        return nullcontext()

    def _check_form(self, called: str) -> None:  # noqa: B027  # of a whole dataset, all forms can be had
        """Refuse a form of rows that cannot be had."""

    @abstractmethod
    def schema(self) -> Any:
        """Names and types of the columns."""

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = DEFAULT_BATCH_ROWS,
        global_batch_size: int | None = None,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_blocks: int | None = None,
        _collate_fn: Callable[[Any], Any] | None = None,
        _finalize_fn: Callable[[Any], Any] | None = None,
    ) -> BatchIterable[Any]:
        """Batches as dicts of numpy arrays ("numpy", the default), pandas frames or Arrow tables.

        `batch_size` is that of this worker; `global_batch_size` is that of all workers together, who share it equally.
        Only the last batch of a pass may be shorter. What is given out is yours: writing to
        it changes nothing else. `prefetch_blocks` is the old spelling of `prefetch_batches`.
        """
        from paceline.data.formats import check_batch_format, to_batch

        batch_size = rows_per_worker(batch_size, global_batch_size, self._sharers)
        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_blocks
        )
        chosen = check_batch_format(batch_format)
        functions = [function for function in (_collate_fn, _finalize_fn) if function is not None]

        def cut(run: Chunk, rows: int, copy: bool) -> Iterator[Any]:
            for start in range(0, run.num_rows, max(1, rows)):
                batch: Any = to_batch(run.slice(start, rows), chosen, copy=copy, own=not copy)
                for function in functions:
                    batch = _collated(function, batch)
                yield batch

        return BatchIterable(self, options, cut, in_background=bool(functions))

    def iter_rows(self, *, prefetch_blocks: int = 1) -> Iterator[dict[str, Any]]:
        """One dict per row."""
        self._check_form("iter_rows")
        return _rows_of(self._begin, BatchOptions(batch_size=None, prefetch_batches=prefetch_blocks), self.clock)

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = DEFAULT_BATCH_ROWS,
        global_batch_size: int | None = None,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_blocks: int | None = None,
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
        batch_size = rows_per_worker(batch_size, global_batch_size, self._sharers)
        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_blocks
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
        global_batch_size: int | None = None,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_blocks: int | None = None,
    ) -> BatchIterable[Any]:
        """Batches as dicts of TensorFlow tensors; columns whose rows differ in shape give ragged ones."""
        batch_size = rows_per_worker(batch_size, global_batch_size, self._sharers)
        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_blocks
        )
        return self._tf_batches(options, dtypes)

    def _tf_batches(
        self, options: BatchOptions, dtypes: Any = None, ragged: Collection[str] = ()
    ) -> BatchIterable[Any]:
        from paceline.data import tf_batches

        def cut(run: Chunk, rows: int, copy: bool) -> Iterator[Any]:
            for start in range(0, run.num_rows, max(1, rows)):
                yield tf_batches.tf_columns(run.slice(start, rows), dtypes, ragged)

        return BatchIterable(self, options, cut)

    def iter_jax_batches(
        self,
        *,
        sharding: Any = None,
        prefetch_batches: int = 1,
        batch_size: int | None = DEFAULT_BATCH_ROWS,
        global_batch_size: int | None = None,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> BatchIterable[Any]:
        """Batches as dicts of jax.Arrays, each of which holds the rows of all workers.

        `sharding` is a jax.sharding.Sharding, a Mesh (rows are dealt over its first axis) or a dict of these by column;
        None deals the rows over all devices. Every worker takes equally many batches.
        """
        from paceline.data.jax_batches import GlobalArrays

        self._check_form("iter_jax_batches")
        batch_size = rows_per_worker(batch_size, global_batch_size, self._sharers)
        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )
        arrays = GlobalArrays(sharding, self._sharers, dtypes)
        return BatchIterable(self, options, lambda run, rows, copy: arrays.split(run, rows))

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
        prefetch_blocks: int | None = None,
    ) -> Any:
        """A tf.data.Dataset of (features, labels); every iteration over it is a new pass.

        Columns whose rows may differ in shape (lists without a fixed length, ragged tensors) give ragged tensors.
        TensorFlow reads ahead, so a run that is resumed in the middle of a pass begins that pass anew.
        """
        from paceline.data import tf_batches
        from paceline.data.tf_batches import ragged_ranks

        self._check_form("to_tf")

        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_blocks
        )
        schema = self.schema()
        names = tf_batches.listed_columns(feature_columns, label_columns)
        ragged = ragged_ranks(schema, names, lambda: self._first_rows(options.batch_size or 1))
        batches = self._tf_batches(replace(options, read_ahead=True), ragged=ragged)
        return tf_batches.to_tf_dataset(batches, schema, feature_columns, label_columns, ragged)

    def to_torch(
        self,
        *,
        label_column: str | None = None,
        feature_columns: list[str] | list[list[str]] | Mapping[str, list[str]] | None = None,
        label_column_dtype: Any = None,
        feature_column_dtypes: Any = None,
        batch_size: int = 1,
        prefetch_batches: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        unsqueeze_label_tensor: bool = True,
        unsqueeze_feature_tensors: bool = True,
        prefetch_blocks: int | None = None,
    ) -> Any:
        """A torch IterableDataset of (features, label) batches; every iteration over it is a new pass.

        Features are one matrix; a list or dict of lists of columns gives a list or dict of matrices.
        `feature_column_dtypes` is one type for all, or has the form of `feature_columns`.
        """
        from paceline.data import torch_batches
        from paceline.data.torch_batches import features_and_label, only_columns

        self._check_form("to_torch")

        options = BatchOptions.checked(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_blocks
        )
        picked = only_columns(feature_columns, label_column)

        def cut(run: Chunk, rows: int, copy: bool) -> Iterator[Any]:
            return torch_batches.split(picked(run), rows, None, copy)

        return features_and_label(
            BatchIterable(self, options, cut),
            label_column=label_column,
            feature_columns=feature_columns,
            label_column_dtype=label_column_dtype,
            feature_column_dtypes=feature_column_dtypes,
            unsqueeze_label=unsqueeze_label_tensor,
            unsqueeze_features=unsqueeze_feature_tensors,
        )

    # -- looking at rows ------------------------------------------------------------------

    @abstractmethod
    def _all_chunks(self) -> Iterator[Chunk]:
        """All rows, without counting as a pass."""

    def to_pandas(self, limit: int | None = 100_000) -> pd.DataFrame:
        """All rows as one pandas frame; of a shard, those of its next pass. More than `limit` rows are refused."""
        import pyarrow as pa

        from paceline.data.formats import concat, to_batch

        chunks, rows = [], 0
        for chunk in self._all_chunks():
            rows += chunk.num_rows
            if limit is not None and rows > limit:
                raise DataError(
                    f"to_pandas(limit={limit:,}): there are more rows than that. Pass limit=None to have them all in "
                    "memory, or iterate with iter_batches(batch_format='pandas')."
                )
            chunks.append(chunk)
        frame: Any = to_batch(
            concat(chunks or [pa.RecordBatch.from_pylist([], schema=self.schema())]), "pandas", copy=True
        )
        return frame  # type: ignore[no-any-return]  # "pandas" gives a frame

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
        options = BatchOptions.checked(batch_size, 0, False, None, None)
        rows = self._first_rows(options.batch_size or 1)
        if not rows.num_rows:
            raise DataError("take_batch: there are no rows.")
        return to_batch(rows, chosen, copy=True)

    def _first_rows(self, count: int) -> Chunk:
        """So many rows or fewer, without counting as a pass."""
        import pyarrow as pa

        epoch = self._begin_look(BatchOptions(batch_size=count, prefetch_batches=0, most_rows=count))
        try:
            for run in runs(epoch.chunks(), count, drop_last=False):
                return run.slice(0, count)
        finally:
            epoch.end()
        return pa.RecordBatch.from_pylist([], schema=self.schema())

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def default_batch_format(self) -> type:
        """What a batch is where no format is asked for: a dict, of numpy arrays by column."""
        return dict

    def columns(self, fetch_if_missing: bool = True) -> list[str]:
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


def _rows_of(
    begin: Callable[[BatchOptions], Epoch], options: BatchOptions, clock: BatchClock | None = None
) -> Iterator[dict[str, Any]]:
    from paceline.data.formats import to_rows

    epoch = begin(options)
    began = asked = time.perf_counter()
    try:
        for chunk in epoch.chunks():
            if clock is not None:
                clock.waited_for_data(time.perf_counter() - asked)
            for row in to_rows(chunk):
                epoch.yielded(1)
                epoch.stats.rows += 1
                yield row
            asked = time.perf_counter()
    finally:
        epoch.end()
        epoch.stats.batches = 1
        epoch.stats.total_s = time.perf_counter() - began
