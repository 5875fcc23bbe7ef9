"""Where a checkpoint's content is: a directory, a dict, a packed stream, remote storage.

Each source can read one small file, write all its files into a sink, and load its dict. What a manifest
describes is compared with it on the way. Only `load_dict` unpickles.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, cast

from paceline.air.attachment import Attachment
from paceline.air.checkpoint_files import MODEL_FILES, model_files, read_pickle, write_pickle
from paceline.air.constants import (
    ADDED_BY_TO_DICT,
    CHECKPOINT_DATA_FILE,
    CHECKPOINT_MANIFEST_FILE,
    CHECKPOINT_METADATA_FILE,
    CHECKPOINT_PREPROCESSOR_FILE,
    DICT_CHECKPOINT_FILE,
)
from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError, ConfigError
from paceline.air.manifest import (
    Manifest,
    Wanted,
    find_manifest,
    hash_file,
    manifest_name,
    open_regular,
    parse_manifest,
    verify_files,
    verify_names,
)
from paceline.air.packing import FileSink, TarSink, read_packed, safe_relative, tree, unpack
from paceline.air.secrets import without_credentials
from paceline.air.temporary import temporary_directory

Kind = Literal["local_path", "data_dict", "uri"]

PACKED_FILES_KEY = "_packed_files"
"""In the dict of a checkpoint that has files: those files, packed."""
_ADDED_KEYS = ADDED_BY_TO_DICT | {PACKED_FILES_KEY}
_OWN_FILES = frozenset(
    [
        DICT_CHECKPOINT_FILE,
        CHECKPOINT_METADATA_FILE,
        CHECKPOINT_PREPROCESSOR_FILE,
        CHECKPOINT_DATA_FILE,
        CHECKPOINT_MANIFEST_FILE,
        *MODEL_FILES,
    ]
)
_EMPTY_METADATA = b'{"paceline":1}'


class ContentSource(ABC):
    """One place that holds a checkpoint."""

    kind: ClassVar[Kind]
    part: int | None = None
    """The rank whose part of a sharded checkpoint this is; None: it is the whole checkpoint."""

    def snapshot(self) -> ContentSource | None:
        """The content as it is now, if it can be kept in memory and written later; None: write it at once."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """Where it is, for people."""

    @abstractmethod
    def read_file(self, name: str) -> bytes | None:
        """A small file's content; None if there is no such file."""

    @abstractmethod
    def write_files(self, sink: FileSink, move: bool = False) -> None:
        """Write the files; `move` lets a sink take a directory over instead of copying."""

    @abstractmethod
    def load_dict(self) -> dict[str, Any]:
        """The dict that was saved, and under one key the files that were not part of it."""


@dataclass(frozen=True)
class LocalDirectory(ContentSource):
    """A directory on this machine; pickles as its path."""

    path: str

    kind: ClassVar[Kind] = "local_path"

    def describe(self) -> str:
        return f"local_path={self.path!r}"

    def check(self) -> None:
        """Refuse early what cannot be a checkpoint directory."""
        try:
            mode = os.stat(self.path).st_mode
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointNotFoundError(
                f"There is no checkpoint directory {self.path}. Check the path; it may have been moved or deleted."
            ) from error
        except OSError as error:
            raise self._unreadable(error.strerror) from error
        if not stat.S_ISDIR(mode):
            raise CheckpointError(f"{self.path} is not a directory. Give the directory that holds the checkpoint.")
        if not os.access(self.path, os.R_OK | os.X_OK):
            raise self._unreadable(os.strerror(errno.EACCES))

    def _unreadable(self, reason: str | None) -> CheckpointError:
        return CheckpointError(f"The checkpoint {self.path} cannot be read by user {os.getuid()}: {reason}.")

    def is_at(self, path: str) -> bool:
        """Whether `path` is this very directory."""
        return os.path.realpath(self.path) == os.path.realpath(path)

    def contains(self, path: str) -> bool:
        """Whether `path` lies below this directory."""
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.path))

    def is_committed(self) -> bool:
        """Whether it has a manifest of ours, be it damaged."""
        try:
            return find_manifest(Path(self.path)) is not None
        except CheckpointCorruptError:
            return True

    def verify(self, wanted: Wanted | None = None, again: bool = False) -> None:
        """Compare the files that are wanted (None: all) with the manifest, if there is one."""
        self.check()
        manifest = find_manifest(Path(self.path))
        if manifest is not None:
            verify_files(Path(self.path), manifest, wanted, again)

    def read_file(self, name: str) -> bytes | None:
        self.check()
        try:
            with open_regular(Path(self.path, name)) as file:
                content: bytes | None = file.read()
        except (FileNotFoundError, IsADirectoryError):
            content = None
        manifest = find_manifest(Path(self.path))
        if manifest is not None:
            manifest.check_content(self.path, manifest_name(name), content)
        return content

    def write_file(self, name: str, content: bytes) -> None:
        """Store a small file; one of that name is replaced at once."""
        target = Path(self.path, name)
        partial = target.with_name(f"{name}.tmp-{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(target)

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        self.check()
        manifest = find_manifest(Path(self.path))
        if manifest is not None:
            verify_names(Path(self.path), manifest)
        sink.add_directory(self.path, move, manifest)

    def load_dict(self) -> dict[str, Any]:
        self.check()
        manifest = find_manifest(Path(self.path))
        if manifest is not None:
            verify_names(Path(self.path), manifest)
            verify_files(Path(self.path), manifest, lambda name: name == DICT_CHECKPOINT_FILE)
        try:
            with open_regular(Path(self.path, DICT_CHECKPOINT_FILE)) as file:
                data = read_pickle(file, f"{self.path}/{DICT_CHECKPOINT_FILE}")
        except FileNotFoundError:
            data = None
        extra = [(name, path) for name, path in tree(Path(self.path)) if name not in _OWN_FILES]
        if data is not None and not extra:
            return data
        return {**(data or {}), PACKED_FILES_KEY: _packed(extra, self.path, manifest)}


@dataclass(frozen=True)
class MemoryDict(ContentSource):
    """A dict in this process."""

    data: dict[str, Any]

    kind: ClassVar[Kind] = "data_dict"

    def describe(self) -> str:
        keys = ", ".join(repr(key) for key in list(self.data)[:8])
        return f"data_dict with {keys}{', ...' if len(self.data) > 8 else ''}" if keys else "empty data_dict"

    def read_file(self, name: str) -> bytes | None:
        packed = self.data.get(PACKED_FILES_KEY)
        return Packed(packed).read_file(name) if isinstance(packed, bytes) else None

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        packed = self.data.get(PACKED_FILES_KEY)
        if isinstance(packed, bytes):
            Packed(packed).write_files(sink)
            if _ADDED_KEYS.issuperset(self.data):
                return  # nothing but files: do not make a dict checkpoint of it
        content = {key: value for key, value in self.data.items() if key != PACKED_FILES_KEY}
        with sink.open(DICT_CHECKPOINT_FILE) as file:
            write_pickle(content, file)
        for name, model in model_files(content).items():
            with sink.open(name) as file:
                file.write(model)

    def load_dict(self) -> dict[str, Any]:
        return dict(self.data)


@dataclass(frozen=True)
class Packed(ContentSource):
    """A packed checkpoint: bytes, or an attachment, whose memory is shared."""

    data: bytes | Attachment

    kind: ClassVar[Kind] = "data_dict"

    def describe(self) -> str:
        return "packed checkpoint"

    @contextmanager
    def _stream(self) -> Iterator[BinaryIO]:
        if isinstance(self.data, bytes):
            yield io.BytesIO(self.data)
            return
        with self.data.open() as content:
            yield content

    def read_file(self, name: str) -> bytes | None:
        with self._stream() as stream:
            return read_packed(stream, name)

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        with temporary_directory() as folder, self._stream() as stream:
            unpack(stream, folder)
            sink.add_directory(str(folder), move=True)

    def load_dict(self) -> dict[str, Any]:
        with temporary_directory() as folder, self._stream() as stream:
            unpack(stream, folder)
            return LocalDirectory(str(folder)).load_dict()

    def __getstate__(self) -> dict[str, Any]:
        with self._stream() as stream:
            return {"data": stream.read()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        object.__setattr__(self, "data", state["data"])


@dataclass(frozen=True)
class Remote(ContentSource):
    """A directory on a filesystem that fsspec reaches."""

    uri: str
    filesystem: Any = None

    kind: ClassVar[Kind] = "uri"

    def describe(self) -> str:
        return f"uri={without_credentials(self.uri)!r}"

    def _opened(self) -> tuple[Any, str]:
        """The filesystem, and the directory's path on it."""
        if self.filesystem is not None:
            return self.filesystem, self.filesystem._strip_protocol(self.uri)
        import fsspec

        try:
            filesystem, path = fsspec.core.url_to_fs(self.uri)
        except (ValueError, ImportError) as error:
            raise CheckpointError(f"{without_credentials(self.uri)} cannot be reached: {error}") from error
        return filesystem, path

    @cached_property
    def _manifest(self) -> Manifest | None:
        return self._read_manifest()

    def _read_manifest(self) -> Manifest | None:
        content = self._content(CHECKPOINT_MANIFEST_FILE)
        where = f"{without_credentials(self.uri)}/{CHECKPOINT_MANIFEST_FILE}"
        return None if content is None else parse_manifest(content, where)

    def _content(self, name: str) -> bytes | None:
        filesystem, path = self._opened()
        try:
            return cast(bytes, filesystem.cat_file(f"{path}/{name}"))
        except FileNotFoundError:
            return None

    def is_committed(self) -> bool:
        """Whether it has a manifest of ours, be it damaged."""
        try:
            return self._read_manifest() is not None
        except CheckpointCorruptError:
            return True

    def read_file(self, name: str) -> bytes | None:
        content = self._content(name)
        if self._manifest is not None:
            self._manifest.check_content(without_credentials(self.uri), manifest_name(name), content)
        return content

    def write_file(self, name: str, content: bytes) -> None:
        filesystem, path = self._opened()
        filesystem.pipe_file(f"{path}/{name}", content)

    def download(self, into: Path, wanted: Wanted | None = None) -> None:
        """Fetch the files that are wanted (None: all), without the manifest: they have been compared with it."""
        filesystem, path = self._opened()
        found = filesystem.find(path, withdirs=True, detail=True)
        prefix = path.rstrip("/") + "/"
        entries = {name[len(prefix) :]: facts for name, facts in found.items() if name.startswith(prefix)}
        if not entries and not filesystem.isdir(path):
            raise CheckpointNotFoundError(f"There is no checkpoint at {without_credentials(self.uri)}.")
        manifest = self._manifest
        if manifest is not None:
            for name in manifest.files.keys() - entries.keys():
                if wanted is None or wanted(name):
                    manifest.check_content(without_credentials(self.uri), name, None)
            for name in manifest.empty_directories:
                (into / safe_relative(name)).mkdir(parents=True, exist_ok=True)
        for name, facts in sorted(entries.items()):
            if name in ("", CHECKPOINT_MANIFEST_FILE):  # "": an object store's mark of the directory itself
                continue
            target = into / safe_relative(name)
            if facts["type"] == "directory":
                target.mkdir(parents=True, exist_ok=True)
                continue
            if wanted is not None and not wanted(name):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(f"{prefix}{name}", str(target))
            if manifest is not None:
                manifest.check(without_credentials(self.uri), name, *hash_file(target))

    def upload(self, folder: Path) -> None:
        filesystem, path = self._opened()
        filesystem.makedirs(path, exist_ok=True)
        for name, source in tree(folder):
            target = f"{path}/{name}"
            if source.is_dir():
                filesystem.makedirs(target, exist_ok=True)
            else:
                filesystem.put_file(str(source), target)

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        with temporary_directory() as folder:
            self.download(folder)
            sink.add_directory(str(folder), move=True)

    def load_dict(self) -> dict[str, Any]:
        with temporary_directory() as folder:
            self.download(folder)
            return LocalDirectory(str(folder)).load_dict()


def _packed(entries: list[tuple[str, Path]], place: str, expected: Manifest | None) -> bytes:
    stream = io.BytesIO()
    sink = TarSink(stream)
    for name, path in entries:
        sink.add(name, path, place, expected)
    with sink.open(CHECKPOINT_METADATA_FILE) as file:
        file.write(_EMPTY_METADATA)
    sink.close()
    return stream.getvalue()


def dict_source(data: Any) -> MemoryDict:
    """The source that a user's dict is."""
    if not isinstance(data, dict):
        raise ConfigError(f"A dict checkpoint is made from a dict, not {type(data).__name__}.")
    return MemoryDict(data)


def place_of(path: Any, filesystem: Any, must_exist: bool = True) -> LocalDirectory | Remote:
    """The source that a path or URI names."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"A checkpoint's place is a path or a URI, not {path!r}.")
    if filesystem is not None and not hasattr(filesystem, "_strip_protocol"):
        raise ConfigError(f"filesystem must be an fsspec filesystem, not {type(filesystem).__name__}.")
    if filesystem is None and text.startswith("file://"):
        text = text.removeprefix("file://")
    if filesystem is not None or "://" in text:
        return Remote(text, filesystem)
    source = LocalDirectory(os.path.abspath(text))
    if must_exist:
        source.check()
    return source
