"""Checkpoint: a reference to a directory somewhere, with dict, bytes and URI forms."""

from __future__ import annotations

import inspect
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from paceline.air.attachment import Attachment
from paceline.air.checkpoint_facts import CheckpointFacts, naming
from paceline.air.checkpoint_files import (
    CheckpointMetadata,
    loaded_class,
    preprocessor_loaders,
    qualified_name,
)
from paceline.air.checkpoint_sources import (
    ContentSource,
    Kind,
    LocalDirectory,
    MemoryDict,
    Packed,
    Remote,
    dict_source,
    place_of,
)
from paceline.air.constants import (
    CHECKPOINT_ID_KEY,
    CHECKPOINT_METADATA_FILE,
    CHECKPOINT_PREPROCESSOR_FILE,
    PREPROCESSOR_KEY,
    TIMESTAMP_KEY,
)
from paceline.air.errors import CheckpointError, ConfigError
from paceline.air.manifest import Wanted
from paceline.air.packing import DirectorySink, FileSink, TarSink
from paceline.air.temporary import PREFIX, temporary_directory

__all__ = ["Checkpoint", "FileSink", "preprocessor_loaders"]

C = TypeVar("C", bound="Checkpoint")


class Checkpoint(CheckpointFacts):
    """A saved state of a training run.

    The content is a directory, a dict, packed bytes or a directory on remote storage; the to_*
    methods give any of the forms. Only `to_dict` and `get_preprocessor` ever unpickle. A directory is held as a
    reference: sending such a checkpoint to another process sends its path.

    What a run has committed is compared with its manifest whenever it is read; damage raises
    CheckpointCorruptError. Only `path` leads past that.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
        *,
        local_path: str | os.PathLike[str] | None = None,
        data_dict: dict[str, Any] | None = None,
        uri: str | None = None,
    ) -> None:
        options = {"path": path, "local_path": local_path, "data_dict": data_dict, "uri": uri}
        given = {name: value for name, value in options.items() if value is not None}
        if len(given) != 1:
            raise ConfigError(
                f"A Checkpoint has exactly one source, but {' and '.join(given) or 'none'} was given. "
                "Use Checkpoint(path), Checkpoint.from_dict(...) or Checkpoint.from_uri(...)."
            )
        (source,) = given.values()
        self._adopt(dict_source(source) if "data_dict" in given else place_of(source, filesystem))

    @classmethod
    def _around(cls: type[C], source: ContentSource) -> C:
        """A checkpoint of the class that wrote the content, if that is loaded and fits `cls`."""
        name = CheckpointMetadata.decode(source.read_file(CHECKPOINT_METADATA_FILE), source.describe()).class_name
        checkpoint = loaded_class(name, cls)._made_of(source)
        assert isinstance(checkpoint, cls)
        return checkpoint

    @classmethod
    def _made_of(cls: type[C], source: ContentSource) -> C:
        """An object of this class. The constructor of a subclass is called if it can be called like Checkpoint's."""
        checkpoint = cls.__new__(cls)
        checkpoint._adopt(source)
        if cls.__init__ is not Checkpoint.__init__ and _takes(cls.__init__, source.kind):
            content = source.data if isinstance(source, MemoryDict) else {}
            place: Any = content if source.kind == "data_dict" else checkpoint.path
            checkpoint.__init__(**{source.kind: place})  # type: ignore[misc]  # the user's constructor, on what __new__ made
            checkpoint._source = source
        return checkpoint

    # Making one

    @classmethod
    def from_dict(cls: type[C], data: dict[str, Any]) -> C:
        """A checkpoint of the items of a dict; values may be anything that can be pickled."""
        return cls._made_of(dict_source(data))

    @classmethod
    def from_directory(cls: type[C], path: str | os.PathLike[str]) -> C:
        """A checkpoint that is this directory."""
        return cls._around(place_of(path, None))

    @classmethod
    def from_bytes(cls: type[C], data: bytes) -> C:
        """A checkpoint from what `to_bytes` gave."""
        if not isinstance(data, bytes):
            raise ConfigError(f"from_bytes takes the bytes that to_bytes() gave, not {type(data).__name__}.")
        return cls._around(Packed(data))

    @classmethod
    def from_uri(cls: type[C], uri: str) -> C:
        """A checkpoint that is a directory on remote storage (file://, s3://, memory://, ...)."""
        return cls._around(place_of(uri, None))

    @classmethod
    def from_checkpoint(cls: type[C], other: Checkpoint) -> C:
        """The same checkpoint as an object of this class."""
        if not isinstance(other, Checkpoint):
            raise ConfigError(
                f"{cls.__name__}.from_checkpoint() takes a Checkpoint, not {type(other).__name__}. For a dict there is "
                "from_dict(), for a path from_directory()."
            )
        checkpoint = cls._made_of(other._source)
        checkpoint._notes = other._notes
        checkpoint._preprocessor = other._preprocessor
        checkpoint._data_state = other._data_state
        checkpoint._next_best = other._next_best
        return checkpoint

    def snapshot(self: C) -> C | None:
        """The same content, which nothing changes any more; None if it has to be written at once."""
        source = self._source.snapshot()
        if source is None:
            return None
        taken = type(self).from_checkpoint(self)
        taken._source = source
        return taken

    def fetched(self: C, folder: str) -> C:
        """A checkpoint on remote storage as one in a directory of this machine, which is empty so far."""
        assert isinstance(self._source, Remote)
        self._source.download(Path(folder))
        found = type(self)._around(LocalDirectory(folder))
        found._preprocessor = self._preprocessor  # one that was set here and is not stored there
        return found

    @classmethod
    def from_attachment(cls: type[C], attachment: Attachment) -> C:
        """A checkpoint in memory, as `write_packed` wrote it; its content is shared, not copied."""
        return cls._around(Packed(attachment))

    # Its forms

    def to_dict(self) -> dict[str, Any]:
        """The items of the dict; this unpickles.

        Files that were not part of a dict are packed under one key. After a report there are also
        `_timestamp`, `_preprocessor` and `_current_checkpoint_id`.
        """
        with naming(self._next_best):
            data = self._source.load_dict()
        preprocessor = self.get_preprocessor()
        report = self._metadata().report
        if report is not None:
            data[TIMESTAMP_KEY] = report.get("timestamp")
            data.setdefault(PREPROCESSOR_KEY, None)
            data[CHECKPOINT_ID_KEY] = report.get("number")
        if preprocessor is not None:
            data[PREPROCESSOR_KEY] = preprocessor
        return data

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the checkpoint into a directory (a new temporary one by default), a plain copy."""
        if path is None:
            with temporary_directory() as folder:
                self.to_directory(folder)
                target = tempfile.mkdtemp(prefix=PREFIX)
                folder.rename(target)  # from now on it is the caller's
                return target
        target = os.path.abspath(os.fspath(path))
        if isinstance(self._source, LocalDirectory):
            if self._source.is_at(target):
                self._compare_with_manifest()
                return target
            if self._source.contains(target):
                raise ConfigError(f"to_directory({target!r}) lies inside {self!r}, and would become part of itself.")
        is_new = not os.path.lexists(target)
        _refuse_to_overwrite(LocalDirectory(target))
        try:
            self.write_files(DirectorySink(Path(target)))
        except BaseException:
            if is_new:  # nobody must take a part of it for the whole
                shutil.rmtree(target, ignore_errors=True)
            raise
        return target

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """The checkpoint as a directory: its own, to be read only, or a temporary one."""
        with self._directory() as folder:
            yield folder

    @contextmanager
    def _directory(self, wanted: Wanted | None = None) -> Iterator[str]:
        """The same for a caller that reads only the files that are wanted."""
        if isinstance(self._source, LocalDirectory):
            with naming(self._next_best):
                self._source.verify(wanted)
            yield self._source.path
            return
        with temporary_directory() as folder:
            if isinstance(self._source, Remote) and wanted is not None:
                with naming(self._next_best):
                    self._source.download(folder, wanted)
                yield str(folder)
            else:
                yield self.to_directory(folder)

    def verify(self) -> None:
        """Read the whole checkpoint and compare it with its manifest; CheckpointCorruptError if it is damaged.

        A checkpoint that no run has committed has no manifest. It cannot be verified, which is a CheckpointError.
        """
        if not self._compare_with_manifest():
            raise CheckpointError(f"{self!r} cannot be verified: no run has committed it, so it has no manifest.")

    def _compare_with_manifest(self) -> bool:
        """Whether there was a manifest to compare the content with."""
        source = self._source
        if isinstance(source, MemoryDict):
            return False
        if isinstance(source, LocalDirectory):
            with naming(self._next_best):
                source.verify(again=True)
            return source.is_committed()
        with temporary_directory() as folder:
            self.to_directory(folder)
        return not isinstance(source, Remote) or source.is_committed()

    def to_bytes(self) -> bytes:
        """The whole checkpoint packed into bytes."""
        stream = io.BytesIO()
        self.write_packed(stream)
        return stream.getvalue()

    def to_uri(self, uri: str) -> str:
        """Write the checkpoint to remote storage."""
        place = place_of(uri, None, must_exist=False)
        if isinstance(place, LocalDirectory):
            self.to_directory(place.path)
        else:
            assert isinstance(place, Remote)
            if place == self._source:
                self._compare_with_manifest()
                return uri
            _refuse_to_overwrite(place)
            with temporary_directory() as folder:
                place.upload(Path(self.to_directory(folder)))
        return uri

    def get_internal_representation(self) -> tuple[Kind, Any]:
        """What this object holds: ("local_path", path), ("data_dict", dict) or ("uri", uri)."""
        source = self._source
        if isinstance(source, LocalDirectory):
            return source.kind, source.path
        if isinstance(source, Remote):
            return source.kind, source.uri
        return source.kind, self.to_dict()

    def write_files(self, sink: FileSink, *, report: Mapping[str, Any] | None = None, move: bool = False) -> None:
        """Write everything into a sink, the metadata file last.

        `report` (timestamp, number, iteration) is recorded when the checkpoint is part of one; `move`
        lets the sink take a directory over instead of copying it.
        """
        if self._source.part:  # what all parts share is written with the first
            self._source.write_files(sink, move)
            return
        metadata = self._metadata()
        if type(self) is not Checkpoint:  # else that of a class that is not loaded here stays
            metadata.class_name = qualified_name(type(self))
        if report is not None:
            metadata.report = dict(report)
        preprocessor = self._stored_preprocessor() or self.read_file(CHECKPOINT_PREPROCESSOR_FILE)
        with naming(self._next_best):
            self._source.write_files(sink, move)
        if preprocessor is not None:
            with sink.open(CHECKPOINT_PREPROCESSOR_FILE) as file:
                file.write(preprocessor)
        with sink.open(CHECKPOINT_METADATA_FILE) as file:
            file.write(metadata.encode())

    def write_packed(self, stream: BinaryIO, *, report: Mapping[str, Any] | None = None) -> None:
        """Write the packed form into an open file."""
        sink = TarSink(stream)
        self.write_files(sink, report=report)
        sink.close()

    def with_preprocessor(self: C, preprocessor: Any) -> C:
        """This checkpoint with a preprocessor, unless it has one of its own; the object itself stays as it is."""
        if self.get_preprocessor() is not None:
            return self
        together = type(self).from_checkpoint(self)
        together._preprocessor = preprocessor
        return together

    def __eq__(self, other: object) -> bool:
        """Two references to one place are equal; contents are not compared."""
        if not isinstance(other, Checkpoint):
            return NotImplemented
        if isinstance(self._source, LocalDirectory | Remote):
            return self._source == other._source
        return self._source is other._source

    def __hash__(self) -> int:
        source = self._source
        if isinstance(source, LocalDirectory | Remote):
            return hash(self.uri)
        return id(source)


def _refuse_to_overwrite(place: LocalDirectory | Remote) -> None:
    if place.is_committed():
        raise CheckpointError(
            f"{place.describe()} is a committed checkpoint of a run and is not overwritten. Choose another place, or "
            "delete it first."
        )


def _takes(constructor: Callable[..., Any], keyword: str) -> bool:
    """Whether a constructor can be called with this keyword alone."""
    try:
        inspect.signature(constructor).bind(None, **{keyword: None})
    except TypeError:
        return False
    return True
