"""from_tf, from_dask, from_spark and from_polars: what other libraries hold, copied into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError
from paceline.data.from_objects import from_arrow, from_items, from_pandas

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


def from_tf(dataset: Any) -> Dataset:
    """A finite `tf.data.Dataset`. All elements are taken into memory, and each is a row.

    Elements that are dicts give columns by their keys, tuples columns "item_0", "item_1", ..., others a column "item".
    """
    from paceline.data.sources.torch_dataset import row_of

    if not hasattr(dataset, "as_numpy_iterator") or not hasattr(dataset, "cardinality"):
        raise ConfigError(f"from_tf: expected a tf.data.Dataset, not {type(dataset).__name__}.")
    if int(dataset.cardinality()) == -1:  # tf.data.INFINITE_CARDINALITY
        raise ConfigError("from_tf: the dataset never ends: use dataset.take(n), or leave out repeat().")
    return from_items([row_of(element) for element in dataset.as_numpy_iterator()])


def from_polars(dfs: Any) -> Dataset:
    """One Polars frame, or several with the same columns; `from_arrow` takes them as well."""
    return from_arrow(dfs)


def from_dask(df: Any) -> Dataset:
    """A Dask DataFrame, computed partition by partition into memory."""
    if not hasattr(df, "npartitions") or not hasattr(df, "partitions"):
        raise ConfigError(f"from_dask: expected a Dask DataFrame, not {type(df).__name__}.")
    return from_pandas([df.partitions[number].compute() for number in range(df.npartitions)])


def from_spark(df: Any, *, parallelism: int | None = None, **_: Any) -> Dataset:
    """A Spark DataFrame, collected into memory: as Arrow from Spark 4 on, else by pandas.

    For data that does not fit, write Parquet with Spark and use `read_parquet`.
    """
    if hasattr(df, "toArrow"):
        dataset = from_arrow(df.toArrow())
    elif hasattr(df, "toPandas"):
        dataset = from_pandas(df.toPandas())
    else:
        raise ConfigError(f"from_spark: expected a Spark DataFrame, not {type(df).__name__}.")
    return dataset if parallelism is None else dataset.repartition(parallelism)
