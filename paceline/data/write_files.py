"""Writing the rows of a plan to files: one per block, all of them or none.

On a local disk files get their names when the last one is complete; until then they are hidden ones. Other filesystems
get each file whole, and lose the ones they got if a later one fails. A file that was there before under a name that
the user chose is replaced, and never deleted.
"""

from __future__ import annotations

import inspect
import os
import posixpath
import shutil
import tempfile
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError, DataError, DataNotFoundError, StorageError
from paceline.data.execution import map_blocks
from paceline.data.objects import check_no_objects
from paceline.data.read_arguments import NO_EFFECT
from paceline.data.sources.file_source import empty_chunk
from paceline.data.sources.listing import list_files

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan
    from paceline.data.write_formats import FileFormat
    from paceline.storage.filesystem import FsspecFilesystem

    NameOf: TypeAlias = Callable[[int, Chunk], str]

ArgsFn: TypeAlias = Callable[[], Mapping[str, Any]]
_ENDINGS = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}
_LATER = {
    "min_rows_per_file": "a file has the rows of a block, so call repartition(number of files) before",
    "num_rows_per_file": "a file has the rows of a block, so call repartition(number of files) before",
    "partition_cols": "write each group with map_groups, or filter and write them one by one",
    "mode": "files are added to those that are there; choose a new directory, or empty it first",
}


@dataclass(frozen=True)
class WriteArguments:
    """As the user gave them."""

    method: str
    filesystem: Any = None
    try_create_dir: bool = True
    compression: str | None = None
    block_path_provider: Any = None
    filename_provider: Any = None

    @classmethod
    def of(cls, method: str, named: Mapping[str, Any], given: dict[str, Any]) -> WriteArguments:
        """Of the arguments that a method names, and those it was given beside; what all know is removed from these."""
        for name in NO_EFFECT:
            value = given.pop(name, None) or named.get(name)
            if value:
                warn_at_users_line(f"{name} has no effect: files are written by this process.")
        for name, advice in _LATER.items():
            if given.pop(name, None) is not None:
                raise ConfigError(f"{method} takes no {name}: {advice}.")
        if named.get("block_path_provider") is not None and named.get("filename_provider") is not None:
            raise ConfigError(f"{method}: give filename_provider or block_path_provider, not both.")
        return cls(
            method,
            named["filesystem"],
            named["try_create_dir"],
            _codec(method, named.get("arrow_open_stream_args")),
            named.get("block_path_provider"),
            named.get("filename_provider"),
        )

    @property
    def names_files(self) -> bool:
        """Whether the user names the files: such names may be in use already."""
        return self.block_path_provider is not None or self.filename_provider is not None

    def refuse(self, given: Mapping[str, Any]) -> None:
        """For methods that take no further arguments."""
        for name in given:
            raise TypeError(f"{self.method}() got an unexpected keyword argument {name!r}")

    def names(self, base: str, token: str, extension: str) -> NameOf:
        """What the file of a block is called; no name is given twice."""
        taken: dict[str, int] = {}
        lock = threading.Lock()
        ending = extension + (_ENDINGS[self.compression] if self.compression else "")

        def name_of(block: int, first: Chunk) -> str:
            with lock:  # blocks are written by several threads, and a provider is code of the user's
                name = self._chosen_name(base, token, extension, block, first) or f"{token}_{block:06d}.{ending}"
                if taken.setdefault(name, block) != block:
                    raise ConfigError(
                        f"{self.method}: block {taken[name]} and block {block} would both be named {name!r}. "
                        "Let the name depend on the index of the block."
                    )
            return name

        return name_of

    def compress(self, place: Path) -> None:
        """The file that was written, compressed as the user asked for."""
        if self.compression is None:
            return
        packed = place.with_name(f"{place.name}.packed")
        try:
            with place.open("rb") as plain, pa.CompressedOutputStream(str(packed), self.compression) as stream:
                shutil.copyfileobj(plain, stream, 1 << 20)
            packed.rename(place)
        except BaseException:
            packed.unlink(missing_ok=True)
            raise

    def _chosen_name(self, base: str, token: str, extension: str, block: int, first: Chunk) -> str | None:
        if self.block_path_provider is not None:
            options = {
                "filesystem": self.filesystem,
                "dataset_uuid": token,
                "task_index": block,
                "block_index": block,
                "file_format": extension,
            }
            path = _by_block_path(self.block_path_provider, base, _table(first), options)
            return self._checked(_below(base, path), "block_path_provider")
        if self.filename_provider is not None:
            return self._checked(_by_filename(self.filename_provider, _table(first), token, block), "filename_provider")
        return None

    def _checked(self, name: Any, argument: str) -> str:
        plain = posixpath.normpath(name) if isinstance(name, str) and name else ""
        if not plain or plain.startswith(("/", "../")) or plain in (".", ".."):
            raise ConfigError(
                f"{self.method}: {argument} gave {name!r}; give a name below the directory of the dataset."
            )
        return plain


def settings_from(function: ArgsFn | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a format: those given, and over them what the function returns."""
    return {**given, **(function() if function is not None else {})}


def _codec(method: str, open_args: Mapping[str, Any] | None) -> str | None:
    settings = dict(open_args or {})
    settings.pop("buffer_size", None)  # how files are written is decided here
    codec = settings.pop("compression", None)
    if settings:
        raise ConfigError(
            f"{method}: {list(settings)} in arrow_open_stream_args: only 'compression' and 'buffer_size' are known. "
            "What concerns the connection goes into filesystem=."
        )
    if codec in (None, "detect"):
        return None
    if method == "write_parquet":
        raise ConfigError(f'write_parquet compresses inside of the file: pass compression="{codec}" itself.')
    if codec not in _ENDINGS:
        raise ConfigError(f"{method}: compression={codec!r}; give one of {', '.join(map(repr, _ENDINGS))}.")
    return str(codec)


def _by_block_path(provider: Any, base: str, block: Any, options: dict[str, Any]) -> Any:
    function = getattr(provider, "_get_write_path_for_block", provider)
    parameters = inspect.signature(function).parameters.values()
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        known = {parameter.name for parameter in parameters}
        options = {name: value for name, value in {**options, "block": block}.items() if name in known}
        return function(base, **options)
    return function(base, block=block, **options)


def _by_filename(provider: Any, block: Any, token: str, index: int) -> Any:
    function = getattr(provider, "get_filename_for_block", None)
    if function is None:
        raise ConfigError(
            f"filename_provider is a {type(provider).__name__}; give one with the method "
            "get_filename_for_block(block, task_index, block_index)."
        )
    newer = "write_uuid" in inspect.signature(function).parameters
    return function(block, token, index, 0) if newer else function(block, index, 0)


def _below(base: str, path: Any) -> Any:
    """The path relative to the directory of the dataset, if it lies there."""
    if not isinstance(path, str):
        return path
    directory = base.rstrip("/") + "/"
    return path.removeprefix(directory) if path.startswith(directory) else path


def _table(chunk: Chunk) -> Any:
    return pa.Table.from_batches([chunk])


def write_blocks(plan: Plan, path: str | os.PathLike[str], form: FileFormat, arguments: WriteArguments) -> None:
    """One file per block, `<uuid>_000000.<extension>` and so on; blocks without rows have none."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ConfigError(f"write_{form.name}: the path is {path!r}: give a directory or a URI.")
    what = f"write_{form.name} to {os.fspath(path)!r}"
    schema = plan.schema()
    check_no_objects(schema, what)
    for name in form.columns or ():
        if name not in schema.names:
            raise DataError(f"{what}: there is no column {name!r}; the columns are {schema.names}.")
    if form.columns is not None:
        schema = pa.schema([schema.field(name) for name in form.columns])
    if not schema.names:
        raise DataError(f"{what}: the dataset has no rows and no columns.")
    target = _target(path, arguments)
    there = _files_there(path, arguments.filesystem, form)
    if there:
        stay = "they stay unless they have the name of a new one" if arguments.names_files else "they stay"
        warn_at_users_line(
            f"{what}: there are {there} .{form.extension} file(s) already, and {stay}: read_{form.name} on that "
            "directory gives their rows and the new ones. Write to a new directory, or delete the files first."
        )
    name_of = arguments.names(os.fspath(path), uuid.uuid4().hex, form.extension)

    def write_block(block: int, chunks: Iterator[Chunk]) -> bool:
        rows = (chunk for chunk in chunks if chunk.num_rows)
        first = next(rows, None)
        if first is None:
            return False
        write_file(block, first, chain([first], rows))
        return True

    def write_file(block: int, first: Chunk, chunks: Iterator[Chunk]) -> None:
        with target.file(name_of(block, first)) as place:
            form.write(place, schema, chunks)
            arguments.compress(place)

    try:
        written = list(map_blocks(plan, write_block, columns=form.columns))
        if not any(written):
            write_file(0, empty_chunk(schema), iter(()))  # so that readers know the columns
        target.commit()
    except BaseException as error:
        target.abort()
        if isinstance(error, OSError | pa.ArrowException) and not isinstance(error, DataError):
            raise DataError(f"{what} failed: {error}") from error
        raise


class _File:
    """Where to write one file; on a clean end it is handed to the target."""

    def __init__(self, target: _Target, name: str) -> None:
        self._target = target
        self._name = name
        self._place = target.place_for(name)

    def __enter__(self) -> Path:
        return self._place

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._target.complete(self._name, self._place)
        else:
            self._place.unlink(missing_ok=True)


class _Target(ABC):
    """A directory that files are written to, from several threads."""

    def file(self, name: str) -> _File:
        return _File(self, name)

    @abstractmethod
    def place_for(self, name: str) -> Path:
        """A local path to write the file to."""

    @abstractmethod
    def complete(self, name: str, place: Path) -> None:
        """The file has been written."""

    @abstractmethod
    def commit(self) -> None:
        """All files have been written."""

    @abstractmethod
    def abort(self) -> None:
        """Take back what has been written."""


class _LocalTarget(_Target):
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._hidden: dict[str, Path] = {}
        self._new: list[Path] = []
        """Files with their names that were not there before."""

    def place_for(self, name: str) -> Path:
        final = self._directory / name
        if final.parent != self._directory:  # a name of the user's may have directories
            final.parent.mkdir(parents=True, exist_ok=True)
        return final.with_name(f".{final.name}.tmp")  # readers pass over hidden files

    def complete(self, name: str, place: Path) -> None:
        self._hidden[name] = place

    def commit(self) -> None:
        for name, place in sorted(self._hidden.items()):
            final = self._directory / name
            if not final.exists():
                self._new.append(final)
            place.rename(final)

    def abort(self) -> None:
        for place in (*self._hidden.values(), *self._new):
            place.unlink(missing_ok=True)


class _RemoteTarget(_Target):
    """Files are written here first: what is uploaded is complete."""

    def __init__(self, filesystem: FsspecFilesystem, *, may_replace: bool) -> None:
        self._filesystem = filesystem
        self._may_replace = may_replace
        self._staging = tempfile.TemporaryDirectory(prefix="paceline-write-")
        self._new: list[str] = []
        """What was uploaded and was not there before."""

    def place_for(self, name: str) -> Path:
        place = Path(self._staging.name) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def complete(self, name: str, place: Path) -> None:
        is_new = not (self._may_replace and self._filesystem.exists(name))
        self._filesystem.upload(place, name)
        if is_new:
            self._new.append(name)
        place.unlink()

    def commit(self) -> None:
        self._staging.cleanup()

    def abort(self) -> None:
        self._staging.cleanup()
        for name in self._new:
            try:
                self._filesystem.delete(name)
            except StorageError:
                return  # the error that led here is the one to tell


def _target(path: str | os.PathLike[str], arguments: WriteArguments) -> _Target:
    text, filesystem = os.fspath(path), arguments.filesystem
    if filesystem is None and text.startswith("file://"):
        text = text.removeprefix("file://")
    if filesystem is not None or "://" in text:
        from paceline.storage.filesystem import FsspecFilesystem

        return _RemoteTarget(FsspecFilesystem(text, filesystem), may_replace=arguments.names_files)
    directory = Path(text).expanduser()
    if arguments.try_create_dir:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"the directory {text!r} cannot be made: {error.strerror}.") from error
    elif not directory.is_dir():
        raise DataNotFoundError(f"there is no directory {text!r}: make it, or leave out try_create_dir=False.")
    return _LocalTarget(directory)


def _files_there(path: str | os.PathLike[str], filesystem: Any, form: FileFormat) -> int:
    """How many files of this format are there: what reading the directory would find."""
    try:
        return len(list_files(path, filesystem, (f".{form.extension}",)))
    except DataError:  # nothing there, or a place that can be written to but not listed
        return 0
