"""Reading files: each function lists the files now and reads their rows when they are needed.

`paths` is a path, a list of paths, a directory (all files of the format below it), a pattern (`data/*.parquet`),
or a URI that fsspec knows (`s3://bucket/data`). What the functions have in common:

- `filesystem`: an fsspec or pyarrow filesystem for the paths.
- `parallelism`, or `override_num_blocks`: about how many blocks to cut the data into, where the format can be cut;
  -1 leaves it open.
- `partitioning`: how names of directories become columns; None: not at all.
- `partition_filter`: a function from a list of paths to those to read, such as `PathPartitionFilter.of(...)`.
- `ignore_missing_paths`: leave out paths that do not exist.
- `arrow_open_stream_args`: `{"compression": ...}` if the names of the files do not say how they are compressed.
- `include_paths`: add a column "path". `file_extensions`: endings of the files that are meant in a directory.
- `ray_remote_args`, `meta_provider`, `concurrency`, `num_cpus`, `num_gpus` and `memory` have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError
from paceline.data.datasource.partitioning import Partitioning
from paceline.data.read_arguments import OpenArgs, PartitionFilter, ReadArguments, RemoteArgs, Scheme
from paceline.data.sources.listing import Paths

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.dataset import Dataset

_HIVE = Partitioning("hive")
_PACKED = ("", ".gz", ".bz2", ".zst", ".lz4")
_OF_ARROWS_SCANNER = ("batch_size", "batch_readahead", "fragment_readahead", "use_threads", "use_async", "memory_pool")


def read_parquet(
    paths: Paths,
    *,
    filesystem: Any = None,
    columns: Sequence[str] | None = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    arrow_open_file_args: OpenArgs = None,
    meta_provider: Any = None,
    partition_filter: PartitionFilter = None,
    partitioning: Scheme = _HIVE,
    ignore_missing_paths: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    **arrow_parquet_args: Any,
) -> Dataset:
    """Parquet files; each row group is a block. Directories like `year=2024` below a given directory become columns.

    on_error="skip" leaves out row groups and files that cannot be decoded, and says so in stats(); every row
    group is then decoded once more, to know before the first row is used. `filter` is a pyarrow expression.
    """
    from paceline.data.dataset import Dataset
    from paceline.data.sources.parquet import ParquetSource

    arguments = ReadArguments.of("read_parquet", locals(), arrow_parquet_args)
    arguments.refuse_compression("Parquet files say themselves how they are compressed")
    condition = _condition(arrow_parquet_args)
    if on_error not in ("raise", "skip"):
        raise ConfigError(f'on_error={on_error!r}: give "raise" or "skip".')
    if isinstance(columns, str):
        raise ConfigError(f"columns={columns!r} is one string; give a list of column names.")
    chosen = None if columns is None else tuple(columns)
    if chosen is not None and len(set(chosen)) < len(chosen):
        raise ConfigError(f"columns={list(chosen)} names a column twice.")
    files = arguments.files(paths, (".parquet", ".parq", ".pq"))
    partitions = arguments.partitions_below(files)
    if condition is None:
        return Dataset(ParquetSource(files, chosen, on_error, partitions))
    # The condition may be about columns that are not chosen.
    found = Dataset(ParquetSource(files, None, on_error, partitions)).filter(expr=condition)
    return found if chosen is None else found.select_columns(list(chosen))


def read_parquet_bulk(paths: Paths, **arguments: Any) -> Dataset:
    """The same as `read_parquet`, which reads many small files as well."""
    return read_parquet(paths, **arguments)


def read_csv(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    arrow_open_stream_args: OpenArgs = None,
    meta_provider: Any = None,
    partition_filter: PartitionFilter = None,
    partitioning: Scheme = _HIVE,
    ignore_missing_paths: bool = False,
    **arrow_csv_args: Any,
) -> Dataset:
    """CSV files, also compressed (.gz, .bz2, .zst, .lz4).

    `read_options`, `parse_options` and `convert_options` are those of pyarrow.csv. Types are inferred from the
    beginning of the first file and hold for all files. Directories like `year=2024` anywhere in a path become columns
    of strings.
    """
    from paceline.data.sources.csv_files import CsvSource

    arguments = ReadArguments.of("read_csv", locals(), arrow_csv_args)
    files = arguments.files(paths, _with_packed(".csv", ".tsv"))
    return arguments.dataset(CsvSource(files, arguments.parallelism, arrow_csv_args))


def read_json(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    arrow_open_stream_args: OpenArgs = None,
    meta_provider: Any = None,
    partition_filter: PartitionFilter = None,
    partitioning: Scheme = _HIVE,
    ignore_missing_paths: bool = False,
    **arrow_json_args: Any,
) -> Dataset:
    """Files with one JSON object per line, or with one array of objects; also compressed.

    `read_options` and `parse_options` are those of pyarrow.json. Fields and types are inferred from the beginning
    of the first file and hold for all files. Directories like `year=2024` anywhere in a path become columns of strings.
    """
    from paceline.data.sources.json_lines import JsonSource

    arguments = ReadArguments.of("read_json", locals(), arrow_json_args)
    files = arguments.files(paths, _with_packed(".json", ".jsonl", ".ndjson"))
    return arguments.dataset(JsonSource(files, arguments.parallelism, arrow_json_args))


def read_text(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    arrow_open_stream_args: OpenArgs = None,
    meta_provider: Any = None,
    partition_filter: PartitionFilter = None,
    partitioning: Scheme = None,
    ignore_missing_paths: bool = False,
    encoding: str = "utf-8",
    drop_empty_lines: bool = True,
    **later: Any,
) -> Dataset:
    """The lines of text files, in a column "text"; also compressed. `drop_empty_lines`: also those of blanks alone."""
    from paceline.data.sources.lines import TextSource

    arguments = ReadArguments.of("read_text", locals(), later)
    arguments.refuse(later, 'text in another encoding needs encoding="..."')
    source = TextSource(arguments.files(paths), arguments.parallelism, encoding, drop_empty_lines)
    return arguments.dataset(source)


def read_binary_files(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    arrow_open_stream_args: OpenArgs = None,
    meta_provider: Any = None,
    partition_filter: PartitionFilter = None,
    partitioning: Scheme = None,
    ignore_missing_paths: bool = False,
    include_paths: bool = False,
    **later: Any,
) -> Dataset:
    """Whole files, one per row, in a column "bytes"."""
    from paceline.data.sources.file_source import BinarySource

    arguments = ReadArguments.of("read_binary_files", locals(), later)
    arguments.refuse(later)
    return arguments.dataset(BinarySource(arguments.files(paths), arguments.parallelism, include_paths))


def read_numpy(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    arrow_open_stream_args: OpenArgs = None,
    meta_provider: Any = None,
    partition_filter: PartitionFilter = None,
    partitioning: Scheme = None,
    ignore_missing_paths: bool = False,
    **later: Any,
) -> Dataset:
    """.npy files as a column "data", .npz files with one column per array; rows run along the first axis."""
    from paceline.data.sources.numpy_files import NumpySource

    arguments = ReadArguments.of("read_numpy", locals(), later)
    arguments.refuse_compression("an .npz file is compressed by itself: numpy.savez_compressed")
    arguments.refuse(later, "rows are read without numpy.load; arrays of Python objects cannot be read")
    return arguments.dataset(NumpySource(arguments.files(paths, (".npy", ".npz")), arguments.parallelism))


def read_images(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    arrow_open_file_args: OpenArgs = None,
    meta_provider: Any = None,
    partition_filter: PartitionFilter = None,
    partitioning: Scheme = None,
    ignore_missing_paths: bool = False,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    **later: Any,
) -> Dataset:
    """Images as arrays in a column "image": (height, width, channels), or (height, width) for one channel.

    With `size` (height, width) all are resized and batches are one array; without it each image keeps
    its own shape. `mode` is one of Pillow's, such as "RGB" or "L"; None keeps what the file has.
    """
    from paceline.data.sources.images import IMAGE_EXTENSIONS, ImageSource

    arguments = ReadArguments.of("read_images", locals(), later)
    arguments.refuse(later)
    files = arguments.files(paths, IMAGE_EXTENSIONS)
    return arguments.dataset(ImageSource(files, arguments.parallelism, size, mode, include_paths))


def read_tfrecords(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    arrow_open_stream_args: OpenArgs = None,
    meta_provider: Any = None,
    partition_filter: PartitionFilter = None,
    partitioning: Scheme = None,
    ignore_missing_paths: bool = False,
    schema: pa.Schema | None = None,
    tf_schema: Any = None,
    **later: Any,
) -> Dataset:
    """TFRecord files of tf.train.Example, also compressed (.gz); TensorFlow is not needed. A file is a block.

    `schema` names the features and their types (lists where a record may have other than one value);
    without it the first records decide. `tf_schema` is a `Schema` of tensorflow-metadata.
    """
    from paceline.data.sources.tfrecords import TfRecordSource

    arguments = ReadArguments.of("read_tfrecords", locals(), later)
    arguments.refuse(later, "records are tf.train.Example, read by the function itself")
    if schema is not None and tf_schema is not None:
        raise ConfigError("read_tfrecords takes either schema (of pyarrow) or tf_schema, not both.")
    files = arguments.files(paths, _with_packed(".tfrecord", ".tfrecords"))
    return arguments.dataset(TfRecordSource(files, schema, tf_schema))


def read_webdataset(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    arrow_open_stream_args: OpenArgs = None,
    meta_provider: Any = None,
    partition_filter: PartitionFilter = None,
    partitioning: Scheme = None,
    ignore_missing_paths: bool = False,
    decoder: bool | None = True,
    **later: Any,
) -> Dataset:
    """WebDataset tar files: a column for each file ending, and "__key__". A file is a block.

    txt, cls, json, npy and images are decoded, other endings are bytes; decoder=False leaves all as bytes.
    """
    from paceline.data.sources.webdataset import WebDatasetSource

    arguments = ReadArguments.of("read_webdataset", locals(), later)
    arguments.refuse_compression("archives are recognised by their content")
    arguments.refuse(
        later, "choose columns with select_columns, rename them with rename_columns, decode in map_batches"
    )
    if decoder not in (True, False, None):
        raise ConfigError(f"decoder={decoder!r}: give True or False, and decode in map_batches what needs more.")
    return arguments.dataset(WebDatasetSource(arguments.files(paths, (".tar", ".tar.gz", ".tgz")), bool(decoder)))


def _condition(given: dict[str, Any]) -> Any:
    """The condition among further arguments of read_parquet; the others have no effect, or another form."""
    condition = given.pop("filter", None)
    for name in given:
        if name in _OF_ARROWS_SCANNER:
            warn_at_users_line(f"{name} has no effect: how files are read is decided by what is read.")
        elif name in ("schema", "tensor_column_schema", "dataset_kwargs"):
            raise ConfigError(f"read_parquet takes no {name}: types are those of the files; cast in map_batches.")
        else:
            raise TypeError(f"read_parquet() got an unexpected keyword argument {name!r}")
    return condition


def _with_packed(*extensions: str) -> tuple[str, ...]:
    return tuple(extension + packed for extension in extensions for packed in _PACKED)
