"""A source of one's own for a file format, and older names about which files to read and what to call written ones."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError
from paceline.data.datasource.datasource import Datasource

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Source


_SHARED = (
    "filesystem",
    "ray_remote_args",
    "arrow_open_stream_args",
    "meta_provider",
    "partition_filter",
    "partitioning",
    "ignore_missing_paths",
)


class FileExtensionFilter:
    """Called with paths of files: those with one of these endings."""

    def __init__(self, file_extensions: str | Sequence[str], allow_if_no_extension: bool = False) -> None:
        given = [file_extensions] if isinstance(file_extensions, str) else list(file_extensions)
        self.file_extensions = [f".{extension.lower().lstrip('.')}" for extension in given]
        self.allow_if_no_extension = allow_if_no_extension

    def __call__(self, paths: Sequence[str]) -> list[str]:
        return [path for path in paths if self._is_wanted(path.rpartition("/")[2].lower())]

    def _is_wanted(self, name: str) -> bool:
        return name.endswith(tuple(self.file_extensions)) or (self.allow_if_no_extension and "." not in name)


class FileBasedDatasource(Datasource):
    """Base class: a subclass defines how the rows of one file are read. Every file is a block.

    `_read_stream(file, path)` yields tables or frames, or `_read_file(file, path)` returns one; the file is open for
    reading. `_FILE_EXTENSIONS` names the endings of files that are meant where a directory is given.
    """

    _FILE_EXTENSION: str | Sequence[str] | None = None
    _FILE_EXTENSIONS: Sequence[str] | None = None

    def __init__(self, paths: Any = None, **options: Any) -> None:
        """`options` are those of the read functions: filesystem, partitioning, ignore_missing_paths, ..."""
        self._paths = paths
        self._options = options

    def _read_stream(self, f: pa.NativeFile, path: str, **reader_args: Any) -> Iterator[Any]:
        yield self._read_file(f, path, **reader_args)

    def _read_file(self, f: pa.NativeFile, path: str, **reader_args: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define _read_stream(f, path) or _read_file(f, path)")

    def source(self, parallelism: int, **read_args: Any) -> Source:
        """What read_datasource reads. Arguments that the read functions do not know go to the two methods above."""
        from paceline.data.read_arguments import ReadArguments
        from paceline.data.sources.read_tasks import FileReaderSource

        given = {**self._options, **read_args}
        paths = given.pop("paths", self._paths)
        if paths is None:
            raise ConfigError(f"{type(self).__name__} needs paths: read_datasource(datasource, paths=...).")
        named = {name: given.pop(name) for name in _SHARED if name in given}
        named.setdefault("arrow_open_stream_args", given.pop("open_stream_args", None))
        arguments = ReadArguments.of("read_datasource", {**named, "parallelism": parallelism}, given)
        files = arguments.files(paths, self._extensions())
        return arguments.dataset(FileReaderSource(files, self._read_stream, given, type(self).__name__)).plan

    def _extensions(self) -> tuple[str, ...]:
        named = self._FILE_EXTENSIONS or self._FILE_EXTENSION or ()
        return tuple(FileExtensionFilter(named).file_extensions)


class BlockWritePathProvider:
    """Base class: a subclass says where a written block goes."""

    def _get_write_path_for_block(
        self,
        base_path: str,
        *,
        filesystem: Any = None,
        dataset_uuid: str | None = None,
        block: Any = None,
        block_index: int | None = None,
        file_format: str | None = None,
    ) -> str:
        raise NotImplementedError(f"{type(self).__name__} must define _get_write_path_for_block")

    def __call__(self, base_path: str, **options: Any) -> str:
        return self._get_write_path_for_block(base_path, **options)


class DefaultBlockWritePathProvider(BlockWritePathProvider):
    def _get_write_path_for_block(
        self,
        base_path: str,
        *,
        dataset_uuid: str | None = None,
        block_index: int | None = None,
        file_format: str | None = None,
        **_: Any,
    ) -> str:
        return posixpath.join(base_path, f"{dataset_uuid}_{block_index:06d}.{file_format}")


class FileMetadataProvider:
    """Accepted by the read functions, and without effect."""


class BaseFileMetadataProvider(FileMetadataProvider):
    pass


class DefaultFileMetadataProvider(BaseFileMetadataProvider):
    pass


class FastFileMetadataProvider(DefaultFileMetadataProvider):
    pass


class ParquetMetadataProvider(FileMetadataProvider):
    pass


class DefaultParquetMetadataProvider(ParquetMetadataProvider):
    pass


class FilenameProvider:
    """Base class: a subclass names the file of each block, with its ending.

    `block` is the block's first rows as an Arrow table. Newer programs have a parameter `write_uuid` before
    `task_index`; both forms are called as they are defined.
    """

    def get_filename_for_block(self, block: Any, task_index: int, block_index: int) -> str:
        raise NotImplementedError(f"{type(self).__name__} must define get_filename_for_block")

    def get_filename_for_row(self, row: dict[str, Any], task_index: int, block_index: int, row_index: int) -> str:
        raise NotImplementedError(f"{type(self).__name__} must define get_filename_for_row")
