"""GroupedData, which `Dataset.groupby` returns, and the sources behind its methods."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.aggregate import Aggregation, ColumnAggregation, Count
from paceline.data.aggregation import Aggregator, with_columns_named
from paceline.data.block import Block, Origin, ReadRequest, Source, default_block_rows
from paceline.data.dataset_base import DatasetBase, named_after_class
from paceline.data.dataset_combining import ColumnAggregates, column_names
from paceline.data.formats import check_batch_format, concat
from paceline.data.operations.user_function import Spot, UserFunction
from paceline.data.operations.user_operation import check_resources
from paceline.data.operations.work import BatchWork, like_before
from paceline.data.plan import BlockPlace, Operation, Plan
from paceline.data.sources.computed import ComputedSource, SortedSource, sortable
from paceline.data.sources.slices import RepartitionedSource
from paceline.data.store import StoredSource, store

if TYPE_CHECKING:
    from paceline.data.block import Chunk


D = TypeVar("D", bound=DatasetBase)


@named_after_class
class GroupedData(ColumnAggregates[D]):
    """Rows in groups. Every method gives a dataset, sorted by key; nothing is computed before that is read."""

    def __init__(self, dataset: D, keys: tuple[str, ...]) -> None:
        self._dataset = dataset
        self._keys = keys

    def __repr__(self) -> str:
        return f"GroupedData(keys={list(self._keys)}, {self._dataset!r})"

    def aggregate(self, *aggregations: Aggregation) -> D:
        """One row per group: its keys, and a column for each aggregation."""
        plan = self._dataset.plan
        named = with_columns_named(aggregations, plan.schema, self._keys)
        return self._dataset._of(AggregatedSource(plan, Aggregator(self._keys, named)))

    def count(self) -> D:
        """Rows per group, in column "count()"."""
        return self.aggregate(Count())

    def map_groups(
        self,
        fn: Callable[..., Any],
        *,
        compute: Any = None,
        batch_format: str | None = "default",
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        **resources: Any,
    ) -> D:
        """What `fn` makes of each group, given whole as one batch; it returns or yields batches of any length.

        It runs in the process that reads; `compute` and the resources of a scheduler have no effect.
        """
        check_resources("map_groups", {"compute": compute, **resources})
        function = UserFunction("map_groups", fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        work = BatchWork(function, check_batch_format(batch_format), zero_copy=False, keeps_row_count=False)
        plan = self._dataset.plan
        source = WholeGroups(plan, self._keys) if self._keys else RepartitionedSource(plan, 1)
        return self._dataset._of(Plan(source, (MapGroups(work, self._keys),)))

    def _each(self, on: str | Sequence[str] | None, make: Callable[[str], ColumnAggregation]) -> D:
        if on is None:
            names = [name for name in self._dataset.plan.schema().names if name not in self._keys]
        else:
            names = column_names(on, "on")
        return self.aggregate(*(make(name) for name in names))


GroupedDataset = GroupedData  # its oldest name


class MapGroups(Operation):
    """Hands each group of a block of sorted rows to the user's function."""

    def __init__(self, work: BatchWork, keys: tuple[str, ...]) -> None:
        self._work = work
        self._keys = keys
        self._schema: pa.Schema | None = None

    @property
    def label(self) -> str:
        return self._work.function.label

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        return self._schema

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        first = 0
        for parts in self._groups(chunks):
            group = concat(parts)
            spot = Spot(place.name, first, group.num_rows)
            first += group.num_rows
            for result in self._work.results(group, spot):
                if self._schema is None and result.num_rows:
                    self._schema = result.schema
                if self._schema is not None and result.schema != self._schema:
                    result = like_before(result, self._schema, f"What {self._work.function} returned on {spot}")
                yield result

    def _groups(self, chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
        """The chunks of each group."""
        current: list[Chunk] = []
        for chunk in chunks:
            if not chunk.num_rows:
                continue
            begin = 0
            for start in self._starts(chunk, current):
                if start > begin:
                    current.append(chunk.slice(begin, start - begin))
                if current:
                    yield current
                current, begin = [], start
            current.append(chunk.slice(begin))
        if current:
            yield current

    def _starts(self, chunk: Chunk, current: list[Chunk]) -> list[int]:
        if not self._keys:
            return []
        before = current[-1].slice(current[-1].num_rows - 1) if current else None
        starts: list[int] = np.flatnonzero(starts_of_groups(chunk, self._keys, before)).tolist()
        return starts


class AggregatedSource(ComputedSource):
    """One row per group, in the order of the keys."""

    def __init__(self, child: Plan, aggregator: Aggregator) -> None:
        super().__init__((child,))
        self._aggregator = aggregator

    def describe(self) -> str:
        return "aggregate"

    def _schema_before(self) -> pa.Schema | None:
        return self._aggregator.schema(self._children[0].schema())

    def _compute(self) -> StoredSource:
        table = self._aggregator.run(self._children[0])
        return store(iter(table.to_batches()), table.schema)


class WholeGroups(Source):
    """Rows sorted by key, each group in one block."""

    def __init__(self, child: Plan, keys: tuple[str, ...]) -> None:
        self._sorted: SortedSource | StoredSource = SortedSource(child, tuple((key, False) for key in keys), "groupby")
        self._keys = keys
        self._cuts: list[int] | None = None

    def describe(self) -> str:
        return f"groupby({', '.join(self._keys)})"

    def schema(self) -> pa.Schema:
        return self._sorted.schema()

    def skipped(self) -> list[str]:
        return self._sorted.skipped()

    def input_files(self) -> list[str]:
        return self._sorted.input_files()

    def origin(self) -> Origin:
        return self._sorted.origin()

    def blocks(self) -> Sequence[Block]:
        cuts = self._found_cuts()
        return [
            Block(f"{self.describe()}, sorted rows {start} to {stop - 1}", stop - start)
            for start, stop in pairwise(cuts)
        ]

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        start, stop = request.within(*self._found_cuts()[block : block + 2])
        yield from self._sorted.resolved().rows_between(start, stop, request)

    def resolved(self) -> WholeGroups:
        self._found_cuts()
        twin = copy.copy(self)
        twin._sorted = self._sorted.resolved()
        return twin

    def _found_cuts(self) -> list[int]:
        if self._cuts is None:
            rows = self._sorted.resolved()
            starts = np.flatnonzero(np.concatenate(list(self._group_starts(rows)) or [np.zeros(0, bool)]))
            wanted = np.arange(0, rows.rows, default_block_rows(rows.rows))
            places = np.searchsorted(starts, wanted)
            cuts = np.unique(starts[places[places < len(starts)]])
            self._cuts = [*cuts.tolist(), rows.rows] if rows.rows else [0]
        return self._cuts

    def _group_starts(self, rows: StoredSource) -> Iterator[npt.NDArray[np.bool_]]:
        before: Chunk | None = None
        for chunk in rows.rows_between(0, rows.rows, ReadRequest(columns=self._keys)):
            yield starts_of_groups(chunk, self._keys, before)
            before = chunk.slice(chunk.num_rows - 1)


def starts_of_groups(rows: Chunk, keys: tuple[str, ...], before: Chunk | None) -> npt.NDArray[np.bool_]:
    """Whether each of these sorted rows has another key than the one above it; `before`: the row above the first."""
    columns = pa.Table.from_batches([rows.select(list(keys))])
    if before is not None:
        columns = pa.concat_tables([pa.Table.from_batches([before.select(list(keys))]), columns])
    differs = np.zeros(max(0, len(columns) - 1), dtype=bool)
    for column in sortable(columns, list(keys), "groupby").columns:
        if pa.types.is_null(column.type):
            continue  # all the same
        above, below = column.slice(0, len(column) - 1), column.slice(1)
        unequal = pc.not_equal(above, below)
        if pa.types.is_floating(column.type):  # NaN counts as equal to NaN
            unequal = pc.and_(unequal, pc.invert(pc.and_(pc.is_nan(above), pc.is_nan(below))))
        one_null = pc.xor(pc.is_null(above), pc.is_null(below))
        differs |= pc.or_(pc.fill_null(unequal, False), one_null).to_numpy()
    first = np.ones(1 if before is None and len(columns) else 0, dtype=bool)
    return np.concatenate([first, differs])
