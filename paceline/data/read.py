"""Reading files: each function lists the files now and reads their rows when they are needed.

`paths` is a path, a list of paths, a directory (all files of the format below it), a pattern (`data/*.parquet`),
or a URI that fsspec knows (`s3://bucket/data`). `filesystem` is an fsspec or pyarrow filesystem for the
paths. `parallelism` is about how many blocks to cut the data into, where the format can be cut; -1 leaves it open.
`ray_remote_args` is accepted from older code, and has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError
from paceline.data.sources.listing import Paths, list_files

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Source
    from paceline.data.dataset import Dataset

RemoteArgs: TypeAlias = Mapping[str, Any] | None
_PACKED = ("", ".gz", ".bz2", ".zst", ".lz4")


def read_parquet(
    paths: Paths,
    *,
    filesystem: Any = None,
    columns: Sequence[str] | None = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> Dataset:
    """Parquet files; each row group is a block. Directories like `year=2024` below a given directory become columns.

    on_error="skip" leaves out row groups and files that cannot be decoded, and says so in stats(); every row
    group is then decoded once more, to know before the first row is used.
    """
    from paceline.data.sources.parquet import ParquetSource

    _check_shared(parallelism, ray_remote_args)
    if on_error not in ("raise", "skip"):
        raise ConfigError(f'on_error={on_error!r}: give "raise" or "skip".')
    if isinstance(columns, str):
        raise ConfigError(f"columns={columns!r} is one string; give a list of column names.")
    chosen = None if columns is None else tuple(columns)
    if chosen is not None and len(set(chosen)) < len(chosen):
        raise ConfigError(f"columns={list(chosen)} names a column twice.")
    files = list_files(paths, filesystem, (".parquet", ".parq", ".pq"))
    return _dataset(ParquetSource(files, chosen, on_error))


def read_csv(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    **arrow_csv_args: Any,
) -> Dataset:
    """CSV files, also compressed (.gz, .bz2, .zst, .lz4).

    `read_options`, `parse_options` and `convert_options` are those of pyarrow.csv. Types are inferred from the
    beginning of the first file and hold for all files.
    """
    from paceline.data.sources.csv_files import CsvSource

    _check_shared(parallelism, ray_remote_args)
    files = list_files(paths, filesystem, _with_packed(".csv", ".tsv"))
    return _dataset(CsvSource(files, parallelism, arrow_csv_args))


def read_json(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    **arrow_json_args: Any,
) -> Dataset:
    """Files with one JSON object per line, or with one array of objects; also compressed.

    `read_options` and `parse_options` are those of pyarrow.json. Fields and types are inferred from the beginning
    of the first file and hold for all files.
    """
    from paceline.data.sources.json_lines import JsonSource

    _check_shared(parallelism, ray_remote_args)
    files = list_files(paths, filesystem, _with_packed(".json", ".jsonl", ".ndjson"))
    return _dataset(JsonSource(files, parallelism, arrow_json_args))


def read_text(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    encoding: str = "utf-8",
    drop_empty_lines: bool = True,
) -> Dataset:
    """The lines of text files, in a column "text"; also compressed."""
    from paceline.data.sources.text import TextSource

    _check_shared(parallelism, ray_remote_args)
    return _dataset(TextSource(list_files(paths, filesystem), parallelism, encoding, drop_empty_lines))


def read_binary_files(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    include_paths: bool = False,
) -> Dataset:
    """Whole files, one per row, in a column "bytes"."""
    from paceline.data.sources.binary import BinarySource

    _check_shared(parallelism, ray_remote_args)
    return _dataset(BinarySource(list_files(paths, filesystem), parallelism, include_paths))


def read_numpy(
    paths: Paths, *, filesystem: Any = None, parallelism: int = -1, ray_remote_args: RemoteArgs = None
) -> Dataset:
    """.npy files as a column "data", .npz files with one column per array; rows run along the first axis."""
    from paceline.data.sources.numpy_files import NumpySource

    _check_shared(parallelism, ray_remote_args)
    return _dataset(NumpySource(list_files(paths, filesystem, (".npy", ".npz")), parallelism))


def read_images(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
) -> Dataset:
    """Images as arrays in a column "image": (height, width, channels), or (height, width) for one channel.

    With `size` (height, width) all are resized and batches are one array; without it each image keeps
    its own shape. `mode` is one of Pillow's, such as "RGB" or "L"; None keeps what the file has.
    """
    from paceline.data.sources.images import IMAGE_EXTENSIONS, ImageSource

    _check_shared(parallelism, ray_remote_args)
    files = list_files(paths, filesystem, IMAGE_EXTENSIONS)
    return _dataset(ImageSource(files, parallelism, size, mode, include_paths))


def read_tfrecords(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    schema: pa.Schema | None = None,
) -> Dataset:
    """TFRecord files of tf.train.Example, also compressed (.gz); TensorFlow is not needed. A file is a block.

    `schema` names the features and their types (lists where a record may have other than one value);
    without it the first records tell.
    """
    from paceline.data.sources.tfrecords import TfRecordSource

    _check_shared(parallelism, ray_remote_args)
    return _dataset(TfRecordSource(list_files(paths, filesystem, _with_packed(".tfrecord", ".tfrecords")), schema))


def read_webdataset(
    paths: Paths,
    *,
    filesystem: Any = None,
    parallelism: int = -1,
    ray_remote_args: RemoteArgs = None,
    decoder: bool = True,
) -> Dataset:
    """WebDataset tar files: a column for each file ending, and "__key__". A file is a block.

    txt, cls, json, npy and images are decoded, other endings are bytes; decoder=False leaves all as bytes.
    """
    from paceline.data.sources.webdataset import WebDatasetSource

    _check_shared(parallelism, ray_remote_args)
    files = list_files(paths, filesystem, (".tar", ".tar.gz", ".tgz"))
    return _dataset(WebDatasetSource(files, decoder))


def _check_shared(parallelism: int, ray_remote_args: RemoteArgs) -> None:
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or (parallelism < 1 and parallelism != -1):
        raise ConfigError(f"parallelism={parallelism!r}: give the number of blocks wanted, or -1 to leave it open.")
    if ray_remote_args:
        warn_at_users_line("ray_remote_args has no effect: files are read in the process that uses their rows.")


def _with_packed(*extensions: str) -> tuple[str, ...]:
    return tuple(extension + packed for extension in extensions for packed in _PACKED)


def _dataset(source: Source) -> Dataset:
    from paceline.data.dataset import Dataset

    return Dataset(source)
