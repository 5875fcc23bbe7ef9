"""What a preprocessor wants to know of a dataset, found out in one streaming pass on all cores.

A `Statistic` says what is wanted of which column; `compute` gives the values. Every block is accumulated
on its own and the blocks are merged in their order, so that results do not depend on timing.

The statistics themselves are in `statistics_numeric`, `statistics_quantiles` and `statistics_values`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import DataError
from paceline.data.execution import map_blocks
from paceline.data.statistics_scratch import Scratch

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


class Accumulator(ABC):
    """What is known of the rows seen so far. Used by one thread at a time."""

    @abstractmethod
    def add(self, values: pa.Array) -> None:
        """Take more values of the column in; the array must not be kept."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Take in what another accumulator of the same statistic has seen; it is not used afterwards."""

    @abstractmethod
    def result(self) -> Any:
        """The value for all rows seen."""


@dataclass(frozen=True)
class Statistic(ABC):
    """What is wanted of one column. Equal ones are computed once.

    A statistic is either accumulated itself (`start`), or derived from one that is (`measured` and `of`):
    mean and standard deviation of a column share one accumulator.
    """

    column: str

    @property
    def measured(self) -> Statistic:
        """The statistic that is accumulated for this one."""
        return self

    def start(self, scratch: Scratch) -> Accumulator:
        """A new accumulator; `scratch` holds what is too much for memory."""
        raise NotImplementedError(f"{type(self).__name__} is derived from {self.measured}.")

    def of(self, value: Any) -> Any:
        """The value of this statistic, from that of `measured`."""
        return value

    def refuses(self, kind: pa.DataType) -> str | None:
        """What the column should hold instead, if it cannot be of this type; None: it can."""
        return None


def compute(plan: Plan, statistics: Iterable[Statistic], what: str = "Statistics") -> dict[Statistic, Any]:
    """The values of all statistics, in one pass that reads only the columns they need.

    `what` begins error messages: the name of the preprocessor.
    """
    wanted = list(dict.fromkeys(statistics))
    if not wanted:
        return {}
    check_columns(plan.schema(), wanted, what)
    measured = list(dict.fromkeys(statistic.measured for statistic in wanted))
    columns = tuple(dict.fromkeys(statistic.column for statistic in measured))
    with Scratch() as scratch:

        def of_block(_: int, chunks: Iterator[Chunk]) -> list[Accumulator]:
            parts = [statistic.start(scratch) for statistic in measured]
            for chunk in chunks:
                for statistic, part in zip(measured, parts, strict=True):
                    part.add(chunk.column(statistic.column))
            return parts

        totals = [statistic.start(scratch) for statistic in measured]
        for parts in map_blocks(plan, of_block, columns=columns):
            for total, part in zip(totals, parts, strict=True):
                total.merge(part)
        results = {statistic: total.result() for statistic, total in zip(measured, totals, strict=True)}
    return {statistic: statistic.of(results[statistic.measured]) for statistic in wanted}


def check_columns(schema: pa.Schema, statistics: Sequence[Statistic], what: str) -> None:
    """Refuse columns that are not there or of a type that has no such statistic, before anything is read."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for statistic in statistics:
        if statistic.column not in kinds:
            raise DataError(f"{what}: there is no column {statistic.column!r}; the columns are {schema.names}.")
        kind = kinds[statistic.column]
        needed = statistic.refuses(kind)
        if needed is not None:
            raise DataError(f"{what}: column {statistic.column!r} is of type {kind}, but must hold {needed}.")
