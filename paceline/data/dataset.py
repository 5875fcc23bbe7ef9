"""Dataset: the public class, put together from groups of methods that live in files of their own."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from paceline.air.absent import advise
from paceline.air.checks import warn_at_users_line, whole_number
from paceline.air.errors import ConfigError
from paceline.data.dataset_base import named_after_class
from paceline.data.dataset_batches import Batches
from paceline.data.dataset_combining import Aggregates, Combining
from paceline.data.dataset_legacy import Legacy
from paceline.data.dataset_transforms import Transforms
from paceline.data.dataset_writes import Writes
from paceline.data.epochs import BatchOptions, Epoch, IterationStats, PlanEpoch
from paceline.data.execution import Piece, chunks_of
from paceline.data.ingest.position import LocalShuffle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from paceline.data.block import Chunk, Source
    from paceline.data.iterator import DataIterator


@named_after_class
class Dataset(Transforms, Combining, Aggregates, Writes, Legacy, Batches):
    """Rows from files or memory, and what is to be done to them; nothing is read before it is asked for.

    Immutable: every method that changes something gives a new dataset.
    """

    def __init__(self, plan: Source) -> None:
        super().__init__(plan)
        self._stats = IterationStats(source=self.plan.describe())

    # -- what it is -----------------------------------------------------------------------

    def schema(self, fetch_if_missing: bool = True) -> pa.Schema:
        """Names and types of the columns. With fetch_if_missing=False, None if a function must run to find out."""
        return self.plan.schema() if fetch_if_missing else self._known_schema()

    def stats(self) -> str:
        """Where the time of the last pass over this dataset went."""
        return self._stats.to_string()

    def __repr__(self) -> str:
        blocks = self.plan.blocks() if self.plan.is_counted else None
        rows = f", rows={sum(block.rows or 0 for block in blocks)}" if blocks is not None else ""
        return f"{type(self).__name__}({self.plan.describe()}{rows})"

    def _repr_html_(self) -> str:
        from paceline.data.dataset_html import dataset_html

        return dataset_html(self)

    def __len__(self) -> int:
        raise TypeError("a dataset may have to be read to know its length: use count()")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a dataset is iterated with iter_rows() or iter_batches()")

    def __getitem__(self, key: object) -> Any:
        if isinstance(key, str):
            raise TypeError(
                f"columns are chosen with select_columns([{key!r}]); values are those of to_pandas()[{key!r}], "
                "iter_batches() or take()"
            )
        raise TypeError("rows have no numbers to get them by: use take(n), limit(n), split_at_indices() or iter_rows()")

    def __bool__(self) -> bool:
        return True

    # -- all of it ------------------------------------------------------------------------

    def to_arrow(self) -> pa.Table:
        """All rows as one Arrow table."""
        import pyarrow as pa

        return pa.Table.from_batches(list(chunks_of(self.plan)), schema=self.schema())

    def to_dask(self) -> Any:
        """All rows as a Dask DataFrame with a partition per block; needs Dask, and takes the rows into memory."""
        try:
            import dask.dataframe
        except ImportError as error:
            raise ConfigError(
                "to_dask needs Dask: pip install 'dask[dataframe]'. Without it, use to_pandas() or write_parquet()."
            ) from error
        return dask.dataframe.from_pandas(self.to_pandas(limit=None), npartitions=max(1, self.num_blocks()))

    def iterator(self) -> DataIterator:
        """An iterator that counts epochs, like the shard of a single worker: each pass is the next epoch."""
        from paceline.data.iterator import DataIterator

        return DataIterator.over(self)

    def streaming_split(
        self, n: int, *, equal: bool = False, locality_hints: list[Any] | None = None
    ) -> list[DataIterator]:
        """One iterator for each of n consumers, as the workers of a run have them; each reads its own share.

        equal=True leaves out the few rows that do not divide by n, others in each epoch.
        """
        from paceline.data.ingest.prepare import prepared
        from paceline.data.iterator import DataIterator

        count = whole_number(n, "n", least=1)
        dataset = prepared("dataset", self, split=True, uneven="equal" if equal else "all")
        return [DataIterator(dataset, rank, count) for rank in range(count)]

    def repeat(self, times: int | None = None) -> DataIterator:
        """As `iterator()`: each pass over it is the next epoch; iter_epochs() ends after `times` of them."""
        return self.iterator().repeat(times)

    def window(self, *, blocks_per_window: int = 10, bytes_per_window: int | None = None) -> DataIterator:
        """As `iterator()`: rows stream in windows of their own already."""
        return self.iterator()

    # -- iterating ------------------------------------------------------------------------

    def _begin(self, options: BatchOptions) -> Epoch:
        self._warn_if_read_whole_by_every_worker()
        self._stats = IterationStats(source=self.plan.describe(), notes=self.plan.notes())
        plan = self.plan.resolved()
        pieces = [Piece(block) for block in range(len(plan.blocks()))]
        order = None
        if options.window:
            seed = random.getrandbits(32) if options.window_seed is None else options.window_seed
            order = LocalShuffle(options.window, seed).order((), 0)
        return PlanEpoch(plan, pieces, options, self._stats, window_order=order)

    def _warn_if_read_whole_by_every_worker(self) -> None:
        from paceline.air import session as session_slot

        session = session_slot.current()
        if session is not None and session.world_size > 1 and not self.plan.worker_share:
            warn_at_users_line(
                "A dataset that comes into the train function by itself is read whole by every worker. Pass it to the "
                "trainer, datasets={'train': ...}, and use get_dataset_shard('train') to have it split."
            )

    def _all_chunks(self) -> Iterator[Chunk]:
        return chunks_of(self.plan)

    def _rows_per_pass(self) -> int | None:
        return sum(self.plan.row_counts()) if self.plan.knows_counts else None


advise(__name__, {}, {"MaterializedDataset": "paceline.data", "Schema": "paceline.data"})
