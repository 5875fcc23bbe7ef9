"""A source of one's own, as programs for other engines define it: read tasks, and what takes written blocks.

`read_datasource` also takes a `paceline.data.block.Source`, which can be read from any row on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from paceline.air.absent import advise
from paceline.data.block import BlockMetadata

_READERS = {
    "BinaryDatasource": "read_binary_files()",
    "CSVDatasource": "read_csv()",
    "ImageDatasource": "read_images()",
    "JSONDatasource": "read_json()",
    "NumpyDatasource": "read_numpy()",
    "ParquetBaseDatasource": "read_parquet()",
    "ParquetDatasource": "read_parquet()",
    "RangeDatasource": "range()",
    "SQLDatasource": "read_sql()",
    "TFRecordDatasource": "read_tfrecords()",
    "TextDatasource": "read_text()",
    "WebDatasetDatasource": "read_webdataset()",
}
ADVICE = {
    **{name: f"use paceline.data.{function}" for name, function in _READERS.items()},
    "Connection": "read_sql() takes a function that returns any DB-API connection",
    "DummyOutputDatasource": "dataset.materialize() reads all rows and writes none",
    "MongoDatasource": "use pymongoarrow and paceline.data.from_arrow()",
    "PathPartitionEncoder": 'write each part to a directory such as "country=us"; Partitioning("hive") reads them',
    "RandomIntRowDatasource": "use numpy.random and paceline.data.from_numpy()",
    "SimpleTensorFlowDatasource": "use paceline.data.from_tf(dataset)",
    "SimpleTorchDatasource": "use paceline.data.from_torch(dataset)",
    "WriteResult": "on_write_complete() gets what the calls of write() have returned",
}


@dataclass
class TaskContext:
    """Which block is being written."""

    task_idx: int
    kwargs: dict[str, Any] = field(default_factory=dict)


class ReadTask:
    """Reads one block: `read_fn()` gives tables, frames, dicts of columns or lists of rows, the same each time."""

    def __init__(
        self, read_fn: Callable[[], Iterable[Any]], metadata: BlockMetadata | None = None, schema: Any = None, **_: Any
    ) -> None:
        self._read_fn = read_fn
        self._metadata = metadata or BlockMetadata()
        self._schema = schema if schema is not None else self._metadata.schema

    @property
    def metadata(self) -> BlockMetadata:
        return self._metadata

    @property
    def schema(self) -> Any:
        return self._schema

    @property
    def read_fn(self) -> Callable[[], Iterable[Any]]:
        return self._read_fn

    def get_metadata(self) -> BlockMetadata:
        return self._metadata

    def __call__(self) -> Iterable[Any]:
        return self._read_fn()


class Reader:
    """Makes the tasks of one read."""

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int) -> list[ReadTask]:
        raise NotImplementedError(f"{type(self).__name__} must define get_read_tasks(parallelism)")


class Datasource:
    """Base class. To be read: `get_read_tasks(parallelism)`, or `create_reader(**read_args)` that returns a `Reader`.

    To be written to: `write(blocks, ctx, **write_args)`, called once for each block with an iterable of its tables.
    """

    def create_reader(self, **read_args: Any) -> Reader:
        return _OwnReader(self, read_args)

    def prepare_read(self, parallelism: int, **read_args: Any) -> list[ReadTask]:
        raise NotImplementedError(f"{type(self).__name__} must define get_read_tasks(parallelism) or create_reader()")

    def get_read_tasks(self, parallelism: int) -> list[ReadTask]:
        return self.prepare_read(parallelism)

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_name(self) -> str:
        return type(self).__name__.removesuffix("Datasource")

    def write(self, blocks: Iterable[Any], ctx: TaskContext, **write_args: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define write(blocks, ctx)")

    def on_write_start(self, **write_args: Any) -> None:
        """Before the first block is written."""

    def on_write_complete(self, write_results: list[Any], **kwargs: Any) -> None:
        """After the last block, with what `write` has returned for each."""

    def on_write_failed(self, write_results: list[Any], error: Exception, **kwargs: Any) -> None:
        """If reading or writing a block has failed."""


class Datasink:
    """Base class of what `write_datasink` writes to: the writing half of `Datasource` without further arguments."""

    def write(self, blocks: Iterable[Any], ctx: TaskContext) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define write(blocks, ctx)")

    def get_name(self) -> str:
        return type(self).__name__.removesuffix("Datasink")

    def on_write_start(self) -> None:
        """Before the first block is written."""

    def on_write_complete(self, write_results: list[Any]) -> None:
        """After the last block, with what `write` has returned for each."""

    def on_write_failed(self, error: Exception) -> None:
        """If reading or writing a block has failed."""


class _OwnReader(Reader):
    """For a datasource that makes its tasks itself."""

    def __init__(self, datasource: Datasource, read_args: dict[str, Any]) -> None:
        self._datasource = datasource
        self._read_args = read_args

    def get_read_tasks(self, parallelism: int) -> list[ReadTask]:
        if self._read_args:
            return self._datasource.prepare_read(parallelism, **self._read_args)
        return self._datasource.get_read_tasks(parallelism)


advise(__name__, ADVICE)
