"""What a checkpoint says about itself: where it is, its report, the user's notes, its preprocessor.

None of this needs the content. It is in small files beside it (checkpoint_files.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.air.checkpoint_files import (
    CheckpointMetadata,
    can_encode_preprocessor,
    checked_notes,
    decode_positions,
    decode_preprocessor,
    encode_preprocessor,
)
from paceline.air.checkpoint_sources import ContentSource, Kind, LocalDirectory, MemoryDict, Remote
from paceline.air.constants import (
    CHECKPOINT_DATA_FILE,
    CHECKPOINT_METADATA_FILE,
    CHECKPOINT_PREPROCESSOR_FILE,
    PREPROCESSOR_KEY,
)
from paceline.air.errors import CheckpointCorruptError, CheckpointError
from paceline.air.secrets import without_credentials


class CheckpointFacts:
    """The half of a Checkpoint that is not about its content."""

    _source: ContentSource
    _notes: dict[str, Any] | None
    """The user's metadata where the source is not a directory; None: as stored."""
    _preprocessor: Any
    """A preprocessor that was set on this object; None: as stored."""
    _data_state: Mapping[str, Any] | None
    """Where the workers were in their datasets, of one that a run had in memory only; None: as stored."""
    _next_best: str | None
    """Where the run has another checkpoint, for whoever finds this one damaged."""

    def _adopt(self, source: ContentSource) -> None:
        self._source = source
        self._notes = None
        self._preprocessor = None
        self._data_state = None
        self._next_best = None

    def read_file(self, name: str) -> bytes | None:
        """A file's content, verified; None if there is no such file."""
        with naming(self._next_best):
            return self._source.read_file(name)

    @property
    def written_as(self) -> str | None:
        """The qualified name of the class that saved it, which need not be loaded here; None for Checkpoint itself."""
        return self._metadata().class_name

    @property
    def data_positions(self) -> dict[str, Any] | None:
        """Dataset name -> where the workers were in it; None if it was reported without datasets."""
        if self._data_state is not None:
            return dict(self._data_state)
        content = self.read_file(CHECKPOINT_DATA_FILE)
        return None if content is None else decode_positions(content, repr(self))

    @property
    def kind(self) -> Kind:
        """In which form it is there: local_path, data_dict or uri."""
        return self._source.kind

    @property
    def part(self) -> int | None:
        """The rank whose part of a sharded checkpoint this is; None: it is the whole checkpoint."""
        return self._source.part

    def peek(self, key: str) -> Any:
        """A value of a dict that is in this process already; None for every other form: nothing is unpickled."""
        return self._source.data.get(key) if isinstance(self._source, MemoryDict) else None

    @property
    def path(self) -> str | None:
        """The directory, if it is one on this machine or on `filesystem`.

        What is read through it is not verified. Use `as_directory`, or call `verify` first.
        """
        source = self._source
        if isinstance(source, LocalDirectory):
            return source.path
        return source.uri if isinstance(source, Remote) else None

    @property
    def uri(self) -> str | None:
        source = self._source
        if isinstance(source, LocalDirectory):
            return f"file://{source.path}"
        return source.uri if isinstance(source, Remote) else None

    @property
    def filesystem(self) -> Any:
        """The filesystem that was given with the path, if any."""
        return self._source.filesystem if isinstance(self._source, Remote) else None

    @property
    def number(self) -> int | None:
        """The n of checkpoint_00000n, once it went through a report."""
        return (self._metadata().report or {}).get("number")

    @property
    def iteration(self) -> int | None:
        """The training iteration it was reported at."""
        return (self._metadata().report or {}).get("iteration")

    @property
    def loader_epochs(self) -> list[int]:
        """Which epoch each prepared DataLoader continues with, in the order in which they were prepared."""
        stored = (self._metadata().report or {}).get("loader_epochs")
        known = isinstance(stored, list) and all(type(epoch) is int and epoch >= 0 for epoch in stored)
        return stored if isinstance(stored, list) and known else []

    def get_metadata(self) -> dict[str, Any]:
        """The user's notes about this checkpoint."""
        return self._metadata().user

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the user's notes (JSON values); a directory gets them in a small file."""
        notes = checked_notes(metadata)
        if not isinstance(self._source, LocalDirectory | Remote):
            self._notes = notes
            return
        _refuse_to_change(self._source, "Its metadata")
        stored = self._metadata()
        stored.user = notes
        self._source.write_file(CHECKPOINT_METADATA_FILE, stored.encode())

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to the user's notes."""
        self.set_metadata({**self.get_metadata(), **checked_notes(metadata)})

    def get_preprocessor(self) -> Any:
        """The preprocessor that belongs to this checkpoint, or None.

        One that holds code of the user's (a function, a class of their own) is stored by pickle: asking
        for it unpickles, so the checkpoint must come from a trusted place.
        """
        if self._preprocessor is not None:
            return self._preprocessor
        if isinstance(self._source, MemoryDict) and self._source.data.get(PREPROCESSOR_KEY) is not None:
            return self._source.data[PREPROCESSOR_KEY]
        content = self.read_file(CHECKPOINT_PREPROCESSOR_FILE)
        if content is None:
            return None
        return decode_preprocessor(content, self._source.describe())

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Keep a preprocessor with this checkpoint."""
        self._preprocessor = preprocessor
        if isinstance(self._source, LocalDirectory | Remote) and (content := self._stored_preprocessor()) is not None:
            _refuse_to_change(self._source, "Its preprocessor")
            self._source.write_file(CHECKPOINT_PREPROCESSOR_FILE, content)

    def _where(self) -> str | None:
        """Its place for people; None if it has none."""
        return None if self.path is None else without_credentials(self.path)

    def _metadata(self) -> CheckpointMetadata:
        stored = CheckpointMetadata.decode(self.read_file(CHECKPOINT_METADATA_FILE), self._source.describe())
        if self._notes is not None:
            stored.user = dict(self._notes)
        return stored

    def _stored_preprocessor(self) -> bytes | None:
        """The preprocessor that was set, as file content; None if none was."""
        if self._preprocessor is not None:
            return encode_preprocessor(self._preprocessor)
        in_dict = self.peek(PREPROCESSOR_KEY)
        return encode_preprocessor(in_dict) if can_encode_preprocessor(in_dict) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source.describe()})"

    def _repr_html_(self) -> str:
        from paceline.air.reprs import checkpoint_html

        return checkpoint_html(type(self).__name__, self._source)


def _refuse_to_change(place: LocalDirectory | Remote, what: str) -> None:
    if place.is_committed():
        raise CheckpointError(
            f"{place.describe()} is a committed checkpoint of a run. {what} cannot be changed any more: "
            "set it before report(), or on a copy made with to_directory()."
        )


@contextmanager
def naming(next_best: str | None) -> Iterator[None]:
    """Damage is reported together with where the run has another checkpoint."""
    try:
        yield
    except CheckpointCorruptError as error:
        if next_best is None:
            raise
        advice = f"The next best checkpoint of the run is {next_best}"
        raise CheckpointCorruptError(f"{str(error).rstrip('.')}. {advice}") from error
