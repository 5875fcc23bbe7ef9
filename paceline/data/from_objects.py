"""from_items, from_pandas and their relatives: datasets of objects in memory, of numbers, or of another framework."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

    from paceline.data.block import Source
    from paceline.data.dataset import Dataset


def from_items(items: Iterable[Any], *, parallelism: int = -1, override_num_blocks: int | None = None) -> Dataset:
    """A dataset of rows. Dicts are rows by their keys; all other values stand in a column "item".

    A key that some dicts lack is null there. `override_num_blocks`, or `parallelism`: the number of blocks.
    """
    from paceline.data.formats import from_batch, from_rows

    _refuse_ray(items, "from_items")
    if isinstance(items, Mapping) or hasattr(items, "columns") or not isinstance(items, Iterable):
        raise ConfigError(
            f"from_items: expected a list of rows or values, not {_type_name(items)}. A single row is"
            ' from_items([row]); columns are for from_pandas, or for from_arrow(pyarrow.table({"x": [...]})).'
        )
    rows = items if isinstance(items, list) else list(items)
    dicts = sum(isinstance(item, Mapping) for item in rows)
    if 0 < dicts < len(rows):
        odd = next(at for at, item in enumerate(rows) if not isinstance(item, Mapping))
        raise DataError(
            f"from_items: item {odd} is {type(rows[odd]).__name__}, while others are dicts. Give either dicts or none."
        )
    if dicts or not rows:
        chunk = from_rows(rows, "from_items")
    else:
        chunk = from_batch({"item": rows}, "from_items")
    return _table_dataset([chunk], "from_items", _blocks(parallelism, override_num_blocks))


def from_pandas(dfs: pd.DataFrame | Sequence[pd.DataFrame], override_num_blocks: int | None = None) -> Dataset:
    """A dataset of one frame, or of several with the same columns.

    An index with a name becomes columns, others are left out. NaN becomes null, as pandas means it. Values are
    copied: changing the frame later does not change the dataset.
    """
    import pandas as pd

    from paceline.data.formats import from_batch

    frames = _listed(dfs, pd.DataFrame, "from_pandas", "a pandas DataFrame")
    chunks = []
    for position, frame in enumerate(frames):
        what = "from_pandas" if len(frames) == 1 else f"from_pandas, frame {position}"
        if any(name is not None for name in frame.index.names):
            try:
                frame = frame.reset_index()
            except ValueError as error:
                raise DataError(f"{what}: the index cannot become a column: {error}. Rename or drop it.") from error
        chunks.append(from_batch(frame.copy(), what))
    return _table_dataset(chunks, "from_pandas", _blocks(-1, override_num_blocks))


def from_numpy(ndarrays: NDArray[Any] | Sequence[NDArray[Any]]) -> Dataset:
    """A dataset with one column "data": a row per entry of the first dimension, also over several arrays.

    Arrays of more than one dimension make a tensor column. Values are copied: changing an array later does not
    change the dataset.
    """
    import numpy as np

    from paceline.data.formats import from_batch

    arrays = _listed(ndarrays, np.ndarray, "from_numpy", "a numpy array", " Use from_items for a list of lists.")
    for array in arrays:
        if array.ndim == 0:
            raise ConfigError("from_numpy: an array without dimensions has no rows; use from_items for single values.")
        if array.shape[1:] != arrays[0].shape[1:]:
            raise DataError(
                f"from_numpy: all arrays must agree in all but their first dimension, but there are shapes"
                f" {arrays[0].shape} and {array.shape}."
            )
    joined = np.concatenate(arrays)  # a copy, also of a single one
    return _table_dataset([from_batch({"data": joined}, "from_numpy")], "from_numpy")


def from_arrow(tables: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """A dataset of an Arrow table, record batch or reader, or of a list of them with the same columns.

    Takes Polars frames, DuckDB relations and whatever else speaks Arrow's C stream as well.
    """
    tables = list(tables) if isinstance(tables, list | tuple) else [tables]
    if not tables:
        raise ConfigError("from_arrow: the list is empty; give at least one table.")
    return _table_dataset([_arrow_table(table) for table in tables], "from_arrow", _blocks(-1, override_num_blocks))


def from_huggingface(
    dataset: Any, parallelism: int = -1, concurrency: int | None = None, override_num_blocks: int | None = None
) -> Dataset | dict[str, Dataset]:
    """A Hugging Face dataset, streamed or not; a dict of datasets for a DatasetDict.

    Rows are read from the dataset's own files. Images and audio come as they are stored: structs of bytes and path.
    """
    _refuse_ray(dataset, "from_huggingface")
    blocks = _blocks(parallelism, override_num_blocks)
    if isinstance(dataset, Mapping):
        return {split: _of_huggingface(part, blocks) for split, part in dataset.items()}
    return _of_huggingface(dataset, blocks)


def from_torch(dataset: Any) -> Dataset:
    """A map-style torch Dataset; items are asked for when rows are read, by the worker that reads them.

    Items that are dicts give columns by their keys, tuples columns "item_0", "item_1", ..., others a column "item".
    """
    from torch.utils.data import IterableDataset

    from paceline.data.sources.framework_datasets import TorchDatasetSource

    _refuse_ray(dataset, "from_torch")
    map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not map_style or isinstance(dataset, IterableDataset):
        raise ConfigError(
            f"from_torch: {_type_name(dataset)} is not a map-style dataset: it needs __len__ and __getitem__, so that"
            " rows can be read in parts and in any order. For an iterable one, use from_items(list(dataset)) if it"
            " fits into memory, or write its rows to Parquet files and read these."
        )
    return _dataset(TorchDatasetSource(dataset))


def range(
    n: int, *, parallelism: int = -1, concurrency: int | None = None, override_num_blocks: int | None = None
) -> Dataset:
    """The numbers 0 to n - 1 in a column "id", made when they are read. `concurrency` has no use here."""
    from paceline.data.sources.computed import RangeSource

    _check_rows(n, "range")
    blocks = _blocks(parallelism, override_num_blocks)
    return _in_blocks(_dataset(RangeSource(n, block_rows=_block_rows(n, blocks, "range"))), n, blocks)


def range_table(n: int, *, parallelism: int = -1) -> Dataset:
    """The old name of a range with a column; `range` gives the same, with the column "id" instead of "value"."""
    return range(n, parallelism=parallelism).rename_columns({"id": "value"})


def range_tensor(
    n: int,
    *,
    shape: tuple[int, ...] = (1,),
    parallelism: int = -1,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """n tensors of that shape in a column "data", each filled with its row number; made when they are read."""
    from paceline.data.sources.computed import RangeSource

    _check_rows(n, "range_tensor")
    if not isinstance(shape, tuple | list) or not all(isinstance(length, int) and length >= 0 for length in shape):
        raise ConfigError(f"range_tensor: shape must be a tuple of lengths, not {shape!r}.")
    blocks = _blocks(parallelism, override_num_blocks)
    return _in_blocks(_dataset(RangeSource(n, tuple(shape), _block_rows(n, blocks, "range_tensor"))), n, blocks)


def refuse_ray_dataset(value: object, where: str) -> None:
    """Raise ConfigError with ways out if this is a Ray Dataset: its rows live in a Ray cluster."""
    if _is_from("ray.data", value):
        raise ConfigError(
            f"{where}: this is a dataset of Ray ({_type_name(value)}), which cannot be read here. Write it with"
            " ds.write_parquet(path) and use paceline.data.read_parquet(path), or, if it fits into memory, use"
            " paceline.data.from_pandas(ds.to_pandas())."
        )


# -- steps ------------------------------------------------------------------------------------


def _dataset(source: Source) -> Dataset:
    from paceline.data.dataset import Dataset

    return Dataset(source)


def _table_dataset(parts: Sequence[pa.RecordBatch | pa.Table], what: str, parallelism: int = -1) -> Dataset:
    import pyarrow as pa

    from paceline.data.formats import check_unique
    from paceline.data.sources.computed import TableSource

    tables = [part if isinstance(part, pa.Table) else pa.Table.from_batches([part]) for part in parts]
    columns = tables[0].column_names
    check_unique(columns, what)
    for position, table in enumerate(tables):
        if set(table.column_names) != set(columns):
            raise DataError(
                f"{what}: all parts must have the same columns, but part 0 has {columns} and part {position} has"
                f" {table.column_names}."
            )
    try:
        table = pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{what}: the parts have columns of different types: {error}") from error
    dataset = _dataset(TableSource(table, _block_rows(table.num_rows, parallelism, what)))
    return _in_blocks(dataset, table.num_rows, parallelism)


def _arrow_table(value: Any) -> pa.Table:
    import pyarrow as pa

    from paceline.data.column_arrays import plain_table

    _refuse_ray(value, "from_arrow")
    if _is_from("polars", value) and hasattr(value, "collect"):
        raise ConfigError("from_arrow: this is a lazy Polars frame; give from_arrow its result, frame.collect().")
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    elif isinstance(value, pa.RecordBatchReader):
        value = value.read_all()
    elif not isinstance(value, pa.Table):
        if not hasattr(value, "__arrow_c_stream__"):
            raise ConfigError(
                f"from_arrow: expected an Arrow table, record batch or reader, a Polars frame or a DuckDB relation,"
                f" not {_type_name(value)}."
            )
        value = pa.table(value)
    return plain_table(value)


def _of_huggingface(dataset: Any, blocks: int) -> Dataset:
    from paceline.data.sources.framework_datasets import HuggingFaceSource, HuggingFaceStreamSource

    if not _is_from("datasets", dataset):
        raise ConfigError(f"from_huggingface: expected a dataset of the `datasets` package, not {_type_name(dataset)}.")
    made = _dataset(HuggingFaceSource(dataset) if hasattr(dataset, "__len__") else HuggingFaceStreamSource(dataset))
    return made if blocks == -1 else made.repartition(blocks)


def _listed(value: Any, kind: type, function: str, meant: str, advice: str = "") -> list[Any]:
    _refuse_ray(value, function)
    values = [value] if isinstance(value, kind) else value
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"{function}: expected {meant} or a list of at least one, not {_type_name(value)}.{advice}")
    for part in values:
        if not isinstance(part, kind):
            raise ConfigError(
                f"{function}: expected {meant} or a list of them; the list holds {_type_name(part)}.{advice}"
            )
    return list(values)


def _check_rows(n: int, function: str) -> None:
    if not isinstance(n, int) or n < 0:
        raise ConfigError(f"{function}: the number of rows must be an integer from 0 on, not {n!r}.")


def _blocks(parallelism: int, override_num_blocks: int | None) -> int:
    """The number of blocks, whose argument has had two names."""
    return parallelism if override_num_blocks is None else override_num_blocks


def _block_rows(rows: int, parallelism: int, function: str) -> int | None:
    if not isinstance(parallelism, int) or parallelism == 0 or parallelism < -1:
        raise ConfigError(f"{function}: parallelism must be a number of blocks, or -1, not {parallelism!r}.")
    return None if parallelism == -1 else max(1, math.ceil(rows / parallelism))


def _in_blocks(dataset: Dataset, rows: int, parallelism: int) -> Dataset:
    """As many blocks as were asked for: blocks of one size cannot always be that many (20 rows in 6 blocks)."""
    wanted = min(parallelism, rows)
    return dataset if wanted < 1 or dataset.num_blocks() == wanted else dataset.repartition(wanted)


def _refuse_ray(value: object, function: str) -> None:
    refuse_ray_dataset(value, function)
    if isinstance(value, list | tuple):
        for part in value:
            refuse_ray_dataset(part, function)


def _is_from(package: str, value: object) -> bool:
    """True if the class of the value, or one that it inherits from, is defined in that package."""
    modules = (base.__module__ for base in type(value).__mro__)
    return any(module == package or module.startswith(f"{package}.") for module in modules)


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def from_tf(dataset: Any) -> Dataset:
    """A finite `tf.data.Dataset`. All elements are taken into memory, and each is a row.

    Elements that are dicts give columns by their keys, tuples columns "item_0", "item_1", ..., others a column "item".
    """
    from paceline.data.sources.framework_datasets import row_of

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
