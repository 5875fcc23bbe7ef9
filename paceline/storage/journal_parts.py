"""The copy of a journal on remote storage, in parts of fixed size: only the last one is ever uploaded again.

The first part has the journal's own name; the others lie in a folder beside it, named by the byte they begin at. A
journal that an earlier version uploaded whole is a first part that is longer than usual.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline.air.background_pool import in_parallel
from paceline.storage.filesystem import Filesystem

PART_BYTES = 256 * 1024
"""The most that is sent again for one new record. Smaller parts would mean more of them to fetch."""
_PARALLEL_TRANSFERS = 4
_PARTS_OF_AN_END = 2
"""So that the record that says how a run ended is among them, whatever part it begins in."""


class JournalParts:
    """Keeps the remote copy of a growing journal up to date. Use it from one thread at a time."""

    def __init__(self, filesystem: Filesystem, local: Path) -> None:
        self._filesystem = filesystem
        self._local = local
        self.pushed = 0
        """How many bytes are known to be there."""

    def push(self) -> None:
        """Upload what was appended since the last time."""
        size = self._local.stat().st_size if self._local.exists() else 0
        if size == self.pushed:
            return
        offsets = list(range(min(self.pushed, size) // PART_BYTES * PART_BYTES, size, PART_BYTES))
        if offsets[:1] == [0]:
            offsets.append(offsets.pop(0))  # last, as it may replace a longer one, or announce a run
        with open(self._local, "rb") as journal:
            for offset in offsets:
                journal.seek(offset)
                content = journal.read(min(PART_BYTES, size - offset))
                self._filesystem.write_bytes(_name(self._local.name, offset), content)
        self.pushed = size


def fetch_journal(filesystem: Filesystem, name: str, into: Path) -> None:
    """Put a journal together from its parts; FileNotFoundError if there is none."""
    filesystem.download(name, into)
    if into.stat().st_size < PART_BYTES:
        return
    offsets = _offsets(filesystem, name)
    with tempfile.TemporaryDirectory(prefix="paceline-journal-") as folder:
        parts = [partial(filesystem.download, _name(name, offset), Path(folder, str(offset))) for offset in offsets]
        in_parallel(parts, "paceline-transfer", _PARALLEL_TRANSFERS)
        with open(into, "r+b") as journal:
            end = journal.seek(0, 2)
            for offset in offsets:
                if offset > end:
                    break  # the torn end of an earlier driver's journal, from before this one got so far
                journal.seek(offset)
                journal.write(Path(folder, str(offset)).read_bytes())
                end = max(end, journal.tell())


def fetch_ends(filesystem: Filesystem, name: str, into: Path) -> bool:
    """Put the beginning and the end of a journal into a file, whole lines only. Returns whether that is all of it."""
    filesystem.download(name, into)
    offsets = _offsets(filesystem, name) if into.stat().st_size == PART_BYTES else []
    if len(offsets) <= _PARTS_OF_AN_END or offsets[-1] - offsets[-_PARTS_OF_AN_END] >= _PARTS_OF_AN_END * PART_BYTES:
        fetch_journal(filesystem, name, into)
        return True
    with tempfile.TemporaryDirectory(prefix="paceline-journal-") as folder:
        last = {offset: Path(folder, str(offset)) for offset in offsets[-_PARTS_OF_AN_END:]}
        parts = [partial(filesystem.download, _name(name, offset), path) for offset, path in last.items()]
        in_parallel(parts, "paceline-transfer", _PARALLEL_TRANSFERS)
        end = b"".join(path.read_bytes() for path in last.values())
    beginning = into.read_bytes()
    into.write_bytes(beginning[: beginning.rfind(b"\n") + 1] + end[end.find(b"\n") + 1 :])
    return False


@dataclass(frozen=True)
class RemoteJournal:
    """A journal that another machine may be writing, for reading what is new in it."""

    filesystem: Filesystem
    name: str

    def __str__(self) -> str:
        return f"{self.filesystem.label}/{self.name}"

    def read_from(self, offset: int) -> bytes:
        """Everything behind an offset; parts before it are not fetched. FileNotFoundError if there is no journal."""
        offsets = _offsets(self.filesystem, self.name)
        base = offset // PART_BYTES * PART_BYTES
        if base not in offsets:
            base = 0  # nothing new, or still in the first part
        content = bytearray()
        with tempfile.TemporaryDirectory(prefix="paceline-journal-") as folder:
            for begins_at in [base, *(later for later in offsets if later > base)]:
                if begins_at > base + len(content):
                    break  # see fetch_journal
                part = Path(folder, str(begins_at))
                self.filesystem.download(_name(self.name, begins_at), part)
                content[begins_at - base :] = part.read_bytes()
        return bytes(content[offset - base :])


def _offsets(filesystem: Filesystem, journal: str) -> list[int]:
    """Where the parts in the folder begin."""
    names = [part.rpartition("/")[2] for part in filesystem.list(_folder(journal))]
    return sorted(int(part) for part in names if part.isdigit())  # not what is still on its way to its name


def _folder(journal: str) -> str:
    return f"{journal.removesuffix('.jsonl')}.parts"


def _name(journal: str, offset: int) -> str:
    return f"{_folder(journal)}/{offset:012d}" if offset else journal
