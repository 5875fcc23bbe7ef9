"""The arguments that the write methods share: where files go, what they are called, how they are compressed."""

from __future__ import annotations

import inspect
import posixpath
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    from paceline.data.block import Chunk

    NameOf: TypeAlias = Callable[[int, Chunk], str]

ArgsFn: TypeAlias = Callable[[], Mapping[str, Any]]
_ENDINGS = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}
_NO_EFFECT = ("ray_remote_args", "concurrency", "num_cpus", "num_gpus", "memory")
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
        for name in _NO_EFFECT:
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
        import pyarrow as pa

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
    import pyarrow as pa

    return pa.Table.from_batches([chunk])
