"""What a worker of a tree trainer is told to do, and its rows of a dataset: all of them before training starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air import session as session_slot
from paceline.air.errors import DataError
from paceline.train.trees.datasets import meant

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from paceline.data.iterator import DataIterator


@dataclass(frozen=True)
class TreeTask:
    """The arguments of a tree trainer that its workers need."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {
        "params": "params",
        "matrix_params": "dmatrix_params",
        "train_kwargs": "keywords",
    }

    params: Mapping[str, Any]
    """Of the library, as the user gave them."""
    label_column: str
    num_boost_round: int
    """Rounds of the finished model, those of a checkpoint that it starts from included."""
    matrix_params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By dataset, what goes into its matrix beside the features: columns of weights, queries, ..."""
    train_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For the library's train function."""
    checkpoint_frequency: int = 0
    """A checkpoint after every so many rounds; 0: none."""
    checkpoint_at_end: bool = True


def nothing_to_train(rounds: int) -> str:
    return (
        f"The checkpoint has {rounds} rounds, which is all that num_boost_round asks for: it counts those of the "
        "checkpoint too. Nothing was trained; the model is evaluated and kept."
    )


def stopped_before(rounds: int) -> str:
    return (
        f"The checkpoint has {rounds} rounds, and early stopping had ended its training. Nothing was trained; the "
        "model is evaluated and kept."
    )


def will_differ(reason: str) -> str:
    return f"The trees after the checkpoint will differ from those without a break: {reason}."


def unused_parameter(library: str, name: str, known: Sequence[str]) -> str:
    return f"params[{name!r}] has no effect: {library} does not use a parameter of that name here.{meant(name, known)}"


def dataset_names() -> list[str]:
    """The run's datasets, "train" first, the others as they were given: the last one decides about early stopping."""
    return sorted(_shards(), key=lambda name: name != "train")


def is_split(name: str) -> bool:
    """True if each rank has a part of the dataset, False if each one has all of it."""
    return _shard(name).is_split


def count_rows(name: str) -> int:
    """How many rows the dataset has, those of the other ranks included."""
    return _shard(name).count_all()


def check_not_empty(name: str) -> None:
    """Refuse a dataset without rows: a metric of nothing looks like a perfect one."""
    if not count_rows(name):
        raise DataError(f"The dataset {name!r} has no rows. Leave it out, or see what filtered them all away.")


def read_shard(name: str, *, query_column: str | None = None, columns: list[str] | None = None) -> pa.Table:
    """This rank's rows, the same at every attempt; all rows of a query go to one rank."""
    import pyarrow as pa

    batches = list(shard_batches(name, query_column=query_column, columns=columns))
    schema = batches[0].schema if batches else _schema(name, columns)
    return pa.Table.from_batches(batches, schema)


def shard_batches(
    name: str, *, query_column: str | None = None, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """What `read_shard` gives, in portions; may be called again for another pass."""
    shard = _shard(name)
    span = None
    if query_column is not None:
        _check_column(shard, name, query_column)
        if shard.is_split:
            span = _span_of_queries(shard, name, query_column)
    return shard.look(columns=columns, span=span)


def _shards() -> dict[str, DataIterator]:
    return session_slot.required("Shards are there in the workers of a run only.").shards


def _shard(name: str) -> DataIterator:
    return _shards()[name]


def _schema(name: str, columns: list[str] | None) -> pa.Schema:
    import pyarrow as pa

    schema = _shard(name).schema()
    return schema if columns is None else pa.schema([schema.field(column) for column in columns])


def _check_column(shard: DataIterator, name: str, column: str) -> None:
    names = shard.schema().names
    if column not in names:
        raise DataError(f"dataset {name!r} has no column {column!r} for the queries; it has {', '.join(names)}.")


def _span_of_queries(shard: DataIterator, name: str, column: str) -> tuple[int, int]:
    """This rank's rows as (first, one past the last): as equal as can be without cutting a query.

    Every rank reads the whole column, and only that, so that all come to the same result without talking.
    """
    import numpy as np

    starts = _query_starts(shard, name, column)
    rows = shard.count_all()
    borders = [round(rows * rank / shard.workers) for rank in range(1, shard.workers)]
    cuts = [0, *(int(_nearest(starts, border, rows)) for border in borders), rows]
    cuts = np.maximum.accumulate(cuts).tolist()
    return cuts[shard.rank], cuts[shard.rank + 1]


def _nearest(starts: np.ndarray, border: int, rows: int) -> int:
    import numpy as np

    place = int(np.searchsorted(starts, border))
    around = [int(starts[place - 1]) if place else 0, int(starts[place]) if place < len(starts) else rows]
    return min(around, key=lambda start: abs(start - border))


def _query_starts(shard: DataIterator, name: str, column: str) -> np.ndarray:
    """The row numbers at which queries begin; refuses queries whose rows are not next to each other."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [batch.column(0) for batch in shard.look(columns=[column], span=(0, shard.count_all()))]
    values = pa.chunked_array(chunks) if chunks else pa.chunked_array([], pa.int64())
    if values.null_count:
        raise DataError(f"dataset {name!r}: column {column!r} names the query of each row, and has missing values.")
    codes = pc.dictionary_encode(values).combine_chunks()
    if isinstance(codes, pa.ChunkedArray):
        codes = pa.concat_arrays(codes.chunks) if codes.num_chunks else pa.array([], pa.int32()).dictionary_encode()
    numbers = codes.indices.to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    if len(starts) > len(codes.dictionary):
        raise DataError(
            f"dataset {name!r}: the rows of a query must be next to each other. Sort by it: "
            f"datasets={{{name!r}: dataset.sort({column!r})}}."
        )
    return starts
