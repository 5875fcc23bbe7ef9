"""What the directories of a path say: `year=2024/month=03`, or just `2024/03` with names given for the levels."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from paceline.air.absent import advise
from paceline.air.errors import ConfigError, DataError
from paceline.data.datasource.datasource import ADVICE

PartitionDataType: TypeAlias = type[int] | type[float] | type[str] | type[bool]
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive writes for null."""
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


class PartitionStyle(StrEnum):
    HIVE = "hive"
    DIRECTORY = "dir"


@dataclass(frozen=True)
class Partitioning:
    """How directories become columns.

    "hive": every directory named `name=value` counts. "dir": the directories are values, and `field_names` names them
    from the outermost on (None skips a level). Only what is below `base_dir` counts; without it, the whole path.
    Values are strings unless `field_types` says int, float or bool. `filesystem` is accepted from older code, and has
    no effect.
    """

    style: PartitionStyle | str
    base_dir: str | None = None
    field_names: Sequence[str | None] | None = None
    field_types: Mapping[str, PartitionDataType] | None = None
    filesystem: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "style", PartitionStyle(self.style))
        except ValueError:
            raise ConfigError(f'Partitioning(style={self.style!r}): give "hive" or "dir".') from None
        if self.base_dir is not None:
            object.__setattr__(self, "base_dir", os.fspath(self.base_dir))
        if self.style is PartitionStyle.DIRECTORY and not self.field_names:
            raise ConfigError('Partitioning("dir") needs field_names=[...]: one name for each level of directories.')
        for name, kind in (self.field_types or {}).items():
            if kind not in (int, float, str, bool):
                raise ConfigError(f"field_types[{name!r}] is {kind!r}: give int, float, str or bool.")

    @property
    def normalized_base_dir(self) -> str:
        """The base directory without protocol and outer slashes."""
        return _plain(self.base_dir or "")


class PathPartitionParser:
    """Called with the path of a file: its partition values by name."""

    def __init__(self, partitioning: Partitioning) -> None:
        self._partitioning = partitioning

    @staticmethod
    def of(
        style: PartitionStyle | str = PartitionStyle.HIVE,
        base_dir: str | None = None,
        field_names: Sequence[str | None] | None = None,
        field_types: Mapping[str, PartitionDataType] | None = None,
        filesystem: Any = None,
    ) -> PathPartitionParser:
        return PathPartitionParser(Partitioning(style, base_dir, field_names, field_types, filesystem))

    @property
    def scheme(self) -> Partitioning:
        return self._partitioning

    def __call__(self, path: str) -> dict[str, Any]:
        directories = _directories(path, self._partitioning.base_dir)
        return self.of_directories(directories, path)

    def of_directories(self, directories: Sequence[str], path: str) -> dict[str, Any]:
        """The values that these directories, from the outermost on, stand for; `path` is for messages."""
        found = self._hive(directories, path) if self._is_hive else self._by_level(directories, path)
        return {name: self._typed(name, value, path) for name, value in found.items()}

    @property
    def _is_hive(self) -> bool:
        return self._partitioning.style is PartitionStyle.HIVE

    def _hive(self, directories: Sequence[str], path: str) -> dict[str, str | None]:
        values: dict[str, str | None] = {}
        for directory in directories:
            name, equals, value = directory.partition("=")
            if name and equals:
                values[urllib.parse.unquote(name)] = None if value == NO_VALUE else urllib.parse.unquote(value)
        expected = self._partitioning.field_names
        if values and expected and list(values) != list(expected):
            raise DataError(f"{path}: its directories name {list(values)}, but field_names is {list(expected)}.")
        return values

    def _by_level(self, directories: Sequence[str], path: str) -> dict[str, str | None]:
        names = self._partitioning.field_names or ()
        if not directories:
            return {}
        if len(directories) != len(names):
            raise DataError(
                f"{path}: {len(directories)} directories ({'/'.join(directories)}), but field_names has {len(names)}:"
                f" {list(names)}. Let base_dir name the directory above the first level."
            )
        return {name: value for name, value in zip(names, directories, strict=True) if name is not None}

    def _typed(self, name: str, value: str | None, path: str) -> Any:
        kind = (self._partitioning.field_types or {}).get(name, str)
        if value is None or kind is str:
            return value
        try:
            return _TRUTH[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            raise DataError(f"{path}: {name}={value!r} is not {kind.__name__}, as field_types says.") from None


class PathPartitionFilter:
    """Called with paths of files: those whose partition values `filter_fn` accepts. Other files have no values."""

    def __init__(self, path_partition_parser: PathPartitionParser, filter_fn: Callable[[dict[str, Any]], bool]) -> None:
        self._parser = path_partition_parser
        self._filter_fn = filter_fn

    @staticmethod
    def of(
        filter_fn: Callable[[dict[str, Any]], bool],
        style: PartitionStyle | str = PartitionStyle.HIVE,
        base_dir: str | None = None,
        field_names: Sequence[str | None] | None = None,
        field_types: Mapping[str, PartitionDataType] | None = None,
        filesystem: Any = None,
    ) -> PathPartitionFilter:
        return PathPartitionFilter(
            PathPartitionParser.of(style, base_dir, field_names, field_types, filesystem), filter_fn
        )

    @property
    def parser(self) -> PathPartitionParser:
        return self._parser

    def __call__(self, paths: Sequence[str]) -> list[str]:
        return [path for path in paths if self._filter_fn(self._parser(path))]


def _directories(path: str, base_dir: str | None) -> list[str]:
    """The directories of a path that count; none for a path outside of the base directory."""
    parts = _plain(path).split("/")[:-1]
    if not base_dir:
        return parts
    for base in (_plain(base_dir), _plain(os.path.abspath(os.path.expanduser(base_dir)))):
        above = base.split("/")
        if parts[: len(above)] == above:
            return parts[len(above) :]
    return []


def _plain(path: str) -> str:
    return path.partition("://")[2].strip("/") if "://" in path else path.strip("/")


advise(__name__, ADVICE)
