"""The arguments that the read functions share: which files are meant, how they are opened, what their paths say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError, DataNotFoundError
from paceline.data.datasource.file_based_datasource import FileExtensionFilter, FileMetadataProvider
from paceline.data.datasource.partitioning import Partitioning
from paceline.data.sources.listed_file import DETECT, ListedFile
from paceline.data.sources.listing import Paths, list_files

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset
    from paceline.data.sources.file_source import FileSource, Partitions

RemoteArgs: TypeAlias = Mapping[str, Any] | None
OpenArgs: TypeAlias = Mapping[str, Any] | None
PartitionFilter: TypeAlias = Callable[[list[str]], Sequence[str]] | None
Scheme: TypeAlias = Partitioning | str | None

RESOURCES = ("concurrency", "num_cpus", "num_gpus", "memory")
NO_EFFECT = ("ray_remote_args", *RESOURCES)
"""Settings of a cluster's scheduler."""
_SHARED = (
    "filesystem",
    "parallelism",
    "ray_remote_args",
    "meta_provider",
    "partition_filter",
    "partitioning",
    "ignore_missing_paths",
)
_LATER = ("include_paths", "file_extensions", "override_num_blocks", "shuffle", *RESOURCES)
"""Arguments that newer programs pass."""


@dataclass(frozen=True)
class ReadArguments:
    """As the user gave them; `later` holds those that came with newer releases."""

    function: str
    filesystem: Any = None
    parallelism: int = -1
    ray_remote_args: RemoteArgs = None
    open_args: OpenArgs = None
    meta_provider: Any = None
    partition_filter: PartitionFilter = None
    partitioning: Scheme = None
    ignore_missing_paths: bool = False
    later: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, function: str, named: Mapping[str, Any], given: dict[str, Any]) -> ReadArguments:
        """Of the arguments that a read function names, and those it was given beside: what all of them share.

        What is taken from `given` is removed there.
        """
        later = {name: given.pop(name) for name in _LATER if name in given}
        shared = {name: named[name] for name in _SHARED if name in named}
        if later.get("override_num_blocks") is not None:
            shared["parallelism"] = later["override_num_blocks"]
        open_args = named.get("arrow_open_stream_args") or named.get("arrow_open_file_args")
        arguments = cls(function, open_args=open_args, later=later, **shared)
        arguments._check()
        return arguments

    def refuse(self, given: Mapping[str, Any], advice: str = "") -> None:
        """For functions that take no further arguments."""
        for name in given:
            hint = f": {advice}" if advice else ""
            raise TypeError(f"{self.function}() got an unexpected keyword argument {name!r}{hint}")

    def refuse_compression(self, advice: str) -> None:
        if self._codec() not in (None, DETECT):
            raise ConfigError(f"{self.function} takes no compression: {advice}.")

    def files(self, paths: Paths, extensions: tuple[str, ...] = ()) -> tuple[ListedFile, ...]:
        """All files that are meant, with what the user said of their compression."""
        found = self._listed(paths, self._extensions(extensions))
        codec = self._codec()
        return found if codec == DETECT else tuple(replace(file, compression=codec) for file in found)

    def dataset(self, source: FileSource) -> Dataset:
        """With the columns that paths give."""
        from paceline.data.dataset import Dataset

        partitions = self._partitions(source.files)
        if partitions is None:
            return Dataset(source)
        from paceline.data.sources.file_source import PartitionedSource

        return Dataset(PartitionedSource(source, partitions))

    def partitions_below(self, files: Sequence[ListedFile]) -> Partitions:
        """As read_parquet has them: of directories below the given one, and numbers as numbers."""
        from paceline.data.sources.file_source import Partitions

        scheme = self._scheme()
        found = Partitions() if scheme is None else Partitions.below(files, scheme)
        return found.with_paths(files) if self.later.get("include_paths") else found

    # -- steps ----------------------------------------------------------------------------

    def _check(self) -> None:
        count = self.parallelism
        if isinstance(count, bool) or not isinstance(count, int) or (count < 1 and count != -1):
            raise ConfigError(f"parallelism={count!r}: give the number of blocks wanted, or -1 to leave it open.")
        for name in NO_EFFECT:
            if self.ray_remote_args if name == "ray_remote_args" else self.later.get(name) is not None:
                warn_at_users_line(f"{name} has no effect: files are read in the process that uses their rows.")
        if self.meta_provider is not None and type(self.meta_provider).__module__ != FileMetadataProvider.__module__:
            warn_at_users_line("meta_provider has no effect: files are listed once, with size and stamp.")
        if self.later.get("shuffle") is not None:
            raise ConfigError(
                f"shuffle={self.later['shuffle']!r}: call randomize_block_order() on the dataset instead, or "
                "random_shuffle(); in a trainer, DatasetConfig(randomize_block_order=True)."
            )
        if self.partition_filter is not None and not callable(self.partition_filter):
            raise ConfigError(
                f"partition_filter={self.partition_filter!r}: give PathPartitionFilter.of(function), or a function "
                "that gets a list of paths and returns those to read."
            )
        self._scheme()
        self._codec()

    def _scheme(self) -> Partitioning | None:
        if isinstance(self.partitioning, str):
            return Partitioning(self.partitioning)
        if self.partitioning is not None and not isinstance(self.partitioning, Partitioning):
            raise ConfigError(
                f"partitioning={self.partitioning!r}: give paceline.data.datasource.Partitioning(...), "
                "or None to leave out columns of directories."
            )
        return self.partitioning

    def _codec(self) -> str | None:
        settings = dict(self.open_args or {})
        settings.pop("buffer_size", None)  # how far to read ahead is decided here
        codec = settings.pop("compression", DETECT)
        if settings:
            raise ConfigError(
                f"{self.function}: {list(settings)} in the arguments for opening files: only 'compression' and "
                "'buffer_size' are known. What concerns the connection goes into filesystem=."
            )
        if codec not in (None, DETECT):
            import pyarrow as pa

            try:
                available = pa.Codec.is_available(codec)
            except (ValueError, TypeError):
                available = False
            if not available:
                raise ConfigError(f'compression={codec!r}: give "gzip", "bz2", "zstd", "lz4", "detect" or None.')
        return codec  # type: ignore[no-any-return]

    def _extensions(self, usual: tuple[str, ...]) -> tuple[str, ...]:
        named = self.later.get("file_extensions")
        if self._filters_endings:
            assert isinstance(self.partition_filter, FileExtensionFilter)
            named = self.partition_filter.file_extensions
        if named is None:
            return usual
        return tuple(
            f".{extension.lower().lstrip('.')}" for extension in ([named] if isinstance(named, str) else named)
        )

    @property
    def _filters_endings(self) -> bool:
        """The filter only replaces the usual endings."""
        given = self.partition_filter
        return isinstance(given, FileExtensionFilter) and not given.allow_if_no_extension

    def _listed(self, paths: Paths, extensions: tuple[str, ...]) -> tuple[ListedFile, ...]:
        if self.partition_filter is None or self._filters_endings:
            return list_files(paths, self.filesystem, extensions, ignore_missing=self.ignore_missing_paths)
        found = list_files(paths, self.filesystem, ignore_missing=self.ignore_missing_paths)
        wanted = set(self.partition_filter([file.path for file in found]))
        kept = [file for file in found if file.path in wanted]
        # A filter may be about directories or about endings. So the usual endings count where there are any.
        usual = [file for file in kept if not file.below or file.path.lower().endswith(extensions)]
        if not kept:
            raise DataNotFoundError(
                f"{self.function}: partition_filter has left none of {len(found)} files, the first of them "
                f"{found[0].label}."
            )
        return tuple(usual if extensions and usual else kept)

    def _partitions(self, files: Sequence[ListedFile]) -> Partitions | None:
        scheme = self._scheme()
        paths = bool(self.later.get("include_paths"))
        hive = scheme is not None and scheme.style == "hive"
        if (scheme is None or (hive and not any("=" in file.path for file in files))) and not paths:
            return None
        from paceline.data.sources.file_source import Partitions

        found = Partitions() if scheme is None else Partitions.anywhere(files, scheme)
        found = found.with_paths(files) if paths else found
        return found if found.fields else None


def blocks_wanted(parallelism: int, remote_args: RemoteArgs, later: dict[str, Any], reason: str) -> int:
    """The number of blocks, by its newer or its older name; what is taken from `later` is removed there.

    Settings of a scheduler have no effect, for this reason.
    """
    resources = [later.pop(name, None) for name in RESOURCES]
    if remote_args or any(resources):
        warn_at_users_line(f"ray_remote_args and other resources have no effect: {reason}.")
    blocks: int = later.pop("override_num_blocks", None) or parallelism
    return blocks
