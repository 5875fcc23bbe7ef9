"""The kinds of records that a journal consists of, as structs: how they are read back.

Each kind is a struct whose tag is the record's `kind`. A journal may come from another version, or be growing:
kinds and fields that are not known here are passed over (nothing rewrites a journal, so they stay in the file), and a
journal can be followed from an offset. Records that say a newer `version` are rejected.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, get_args

import msgspec

from paceline.air.errors import NewerVersionError, RestoreError
from paceline.storage.journal import body_of, records_in, whole_records
from paceline.storage.journal_parts import RemoteJournal

_BEGINNING = 64
"""Bytes of a line: enough for checksum, length and kind."""
_PIECE_BYTES = 256 << 10
"""Of a journal that is scanned."""

R = TypeVar("R", bound=msgspec.Struct)


class _Envelope(msgspec.Struct):
    """What can be said of a record that is not understood."""

    kind: str = ""
    version: int = 0


class RecordFormat(Generic[R]):
    """Reads the journals of runs, or those of searches. `kinds` is the union of their structs."""

    def __init__(self, kinds: Any, version: int) -> None:
        self.version = version
        """Of journals that this program writes: a program of an earlier one could not read them."""
        self._kinds = kinds
        self._known = {kind.__struct_config__.tag for kind in get_args(kinds)}
        self._decode: Callable[[bytes], R] = msgspec.json.Decoder(kinds).decode

    def read(self, path: Path, *, without: str = "") -> Iterator[R]:
        """Every whole record, in order. A torn tail is dropped; damage before the end is a StorageError.

        Records of the kind `without` are left out, and not even decoded. FileNotFoundError passes as it is.
        """
        skipped = beginning_of(without) if without else None
        for body, _ in whole_records(path):
            if (skipped is None or not body.startswith(skipped)) and (record := self.decode(body, path)) is not None:
                yield record

    def follow(self, journal: Path | RemoteJournal, offset: int = 0) -> tuple[list[R], int]:
        """The records behind an offset, and the offset to come back with. Whoever writes the journal is not disturbed.

        A line that is not complete yet is left to the next call.
        """
        if isinstance(journal, Path):
            found = whole_records(journal, offset)
        else:
            found = records_in(io.BytesIO(journal.read_from(offset)), offset, str(journal))
        records: list[R] = []
        for body, behind in found:
            offset = behind
            if (record := self.decode(body, journal)) is not None:
                records.append(record)
        return records, offset

    def after(self, path: Path, offset: int = 0) -> Iterator[tuple[R, int]]:
        """Each record behind an offset, and the offset behind that record: a long journal need not be collected."""
        for body, behind in whole_records(path, offset):
            if (record := self.decode(body, path)) is not None:
                yield record, behind

    def scan(self, path: Path, *, without: str) -> Iterator[R]:
        """The same as `read`, but ten times as fast: lines that are left out are not checked for damage."""
        with open(path, "rb") as file:
            for lines in _pieces_with_others(file, _mark(without)):
                yield from self._others(lines, _mark(without), path)

    def scan_on(self, journal: Path | RemoteJournal, offset: int, *, without: str) -> tuple[list[R], int]:
        """As `follow`, but lines that are left out, or damaged, are passed over as by `scan`."""
        records: list[R] = []
        with contextlib.ExitStack() as stack:
            if isinstance(journal, Path):
                file: IO[bytes] = stack.enter_context(open(journal, "rb"))
                file.seek(offset)
            else:
                file = io.BytesIO(journal.read_from(offset))
            before = file.tell()
            for lines in _pieces_with_others(file, _mark(without)):
                records += self._others(lines, _mark(without), journal)
            return records, offset + file.tell() - before

    def _others(self, lines: bytes, mark: bytes, journal: Path | RemoteJournal) -> Iterator[R]:
        for line in lines.split(b"\n")[:-1]:
            if mark not in line[:_BEGINNING] and (body := body_of(line + b"\n")) is not None:
                record = self.decode(body, journal)
                if record is not None:
                    yield record

    def backwards(self, path: Path, mark: bytes) -> Iterator[R]:
        """The records whose JSON contains `mark`, the last one first."""
        with _mapped(path) as content:
            found = content.rfind(mark)
            while found >= 0:
                start = content.rfind(b"\n", 0, found) + 1
                end = content.find(b"\n", found) + 1
                body = body_of(content[start:end])
                if body is not None and (record := self.decode(body, path)) is not None:
                    yield record
                found = content.rfind(mark, 0, start)

    def last_of(self, path: Path, kind: str, *, unless: str) -> R | None:
        """The last record of a kind; None if one of the kind `unless` comes after it.

        Of a journal that ends with such a record only the end is looked at.
        """
        mark = beginning_of(kind)
        with _mapped(path) as content:
            found = content.rfind(mark)
            while found >= 0:
                start, end = content.rfind(b"\n", 0, found) + 1, content.find(b"\n", found) + 1
                body = body_of(content[start:end])
                if body is not None and body.startswith(mark):
                    return None if content.find(beginning_of(unless), end) >= 0 else self.decode(body, path)
                found = content.rfind(mark, 0, start)
        return None

    def decode(self, body: bytes, journal: Path | RemoteJournal) -> R | None:
        """One record; None if it is of a kind that only later versions know."""
        try:
            record = self._decode(body)
        except msgspec.ValidationError as error:
            self._reject_unless_unknown(body, journal, error)
            return None
        except msgspec.DecodeError:  # NaN and infinities
            try:
                record = msgspec.convert(json.loads(body), self._kinds)
            except (msgspec.ValidationError, ValueError) as error:
                self._reject_unless_unknown(body, journal, error)
                return None
        version = getattr(record, "version", None)
        if isinstance(version, int) and version > self.version:
            raise self._too_new(journal)
        return record

    def _reject_unless_unknown(self, body: bytes, journal: Path | RemoteJournal, error: Exception) -> None:
        try:
            said = msgspec.convert(json.loads(body), _Envelope)
        except (msgspec.ValidationError, ValueError):
            raise RestoreError(f"{journal} has an invalid record: {error}") from error
        if said.version > self.version:
            raise self._too_new(journal) from error
        if said.kind in self._known:
            raise RestoreError(f"{journal} has an invalid {said.kind!r} record: {error}") from error

    def _too_new(self, journal: Path | RemoteJournal) -> NewerVersionError:
        return NewerVersionError(
            f"{journal} was written by a newer version of paceline, which this one cannot read: upgrade paceline."
        )


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """A file's content as if it were in memory."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def _mark(kind: str) -> bytes:
    """What the lines of a kind have, and no others: in JSON, quotes within texts are escaped, and nothing is set apart
    by spaces."""
    return b" " + beginning_of(kind)


def _pieces_with_others(file: IO[bytes], mark: bytes) -> Iterator[bytes]:
    """Whole lines of a journal, many at a time, where not all of them have the mark. Afterwards the file stands behind
    the last whole line."""
    size = _PIECE_BYTES
    while piece := file.read(size):
        end = piece.rfind(b"\n") + 1
        file.seek(end - len(piece), os.SEEK_CUR)
        if end:
            size, lines = _PIECE_BYTES, piece[:end]
            if lines.count(mark) != lines.count(b"\n"):
                yield lines
        elif len(piece) == size:
            size *= 2  # a record longer than a piece
        else:
            return  # a torn end


def beginning_of(kind: str) -> bytes:
    return b'{"kind":"%b"' % kind.encode()
