"""What is uploaded of a journal does not grow with it, and what comes back is the journal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import StorageError
from paceline.storage import journal_parts
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import JournalParts, fetch_ends, fetch_journal


class Counting:
    """A filesystem that notes what is uploaded, and is cut off after `most` files."""

    def __init__(self, filesystem: FsspecFilesystem, most: float = float("inf")) -> None:
        self._filesystem = filesystem
        self._most = most
        self.sent: list[tuple[str, int]] = []

    def write_bytes(self, name: str, content: bytes) -> None:
        if len(self.sent) >= self._most:
            raise StorageError("cut off")
        self.sent.append((name, len(content)))
        self._filesystem.write_bytes(name, content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)


@pytest.fixture(params=["memory", "s3", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FsspecFilesystem:
    monkeypatch.setattr(journal_parts, "PART_BYTES", 100)
    if request.param == "file":
        return FsspecFilesystem(f"file://{tmp_path}/store")
    found: FsspecFilesystem = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def append(path: Path, size: int) -> None:
    with open(path, "ab") as file:
        file.write(os.urandom(size))


def fetched(store: FsspecFilesystem, tmp_path: Path) -> bytes:
    fetch_journal(store, "journal.jsonl", tmp_path / "fetched")
    return (tmp_path / "fetched").read_bytes()


def test_a_journal_comes_back_however_it_grew(store: FsspecFilesystem, local: Path, tmp_path: Path) -> None:
    parts = JournalParts(store, local)
    parts.push()
    assert store.list() == []
    for size in (10, 0, 89, 1, 1, 250, 49, 100, 7):
        append(local, size)
        parts.push()
        assert fetched(store, tmp_path) == local.read_bytes()
    assert store.list() == ["journal.jsonl", *(f"journal.parts/{offset:012d}" for offset in range(100, 600, 100))]


def test_what_is_sent_for_a_record_does_not_grow(memory: FsspecFilesystem, local: Path, tmp_path: Path) -> None:
    counting = Counting(memory)
    parts = JournalParts(counting, local)
    most = 0
    for _ in range(200):
        counting.sent.clear()
        append(local, 20_000)
        parts.push()
        most = max(most, sum(size for _, size in counting.sent))
    assert local.stat().st_size == 4_000_000
    assert most <= journal_parts.PART_BYTES + 20_000
    assert fetched(memory, tmp_path) == local.read_bytes()


def test_a_missing_journal_is_file_not_found(store: FsspecFilesystem, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fetch_journal(store, "journal.jsonl", tmp_path / "fetched")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("whole", [40, 100, 555])
def test_a_journal_that_was_uploaded_whole_is_read_and_continued(
    store: FsspecFilesystem, local: Path, tmp_path: Path, whole: int, known: bool
) -> None:
    append(local, whole)
    store.upload(local, "journal.jsonl")
    assert fetched(store, tmp_path) == local.read_bytes()
    parts = JournalParts(store, local)
    parts.pushed = whole if known else 0
    for size in (30, 300):
        append(local, size)
        parts.push()
        assert fetched(store, tmp_path) == local.read_bytes()


@pytest.mark.parametrize("whole", [0, 40, 555])
def test_cut_off_at_any_step_nothing_that_was_there_is_lost(
    memory: FsspecFilesystem, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(journal_parts, "PART_BYTES", 100)
    append(local, whole)
    if whole:
        memory.upload(local, "journal.jsonl")
    append(local, 444)
    for steps in range(20):
        try:
            JournalParts(Counting(memory, steps), local).push()
            break
        except StorageError:
            if whole:
                there = fetched(memory, tmp_path)
                assert len(there) >= whole
                assert local.read_bytes().startswith(there)
            else:
                assert not memory.exists("journal.jsonl")
    assert steps == -(-local.stat().st_size // 100)
    assert fetched(memory, tmp_path) == local.read_bytes()


def test_the_torn_end_of_an_earlier_driver_does_not_come_back(
    store: FsspecFilesystem, local: Path, tmp_path: Path
) -> None:
    append(local, 330)
    JournalParts(store, local).push()
    os.truncate(local, 150)  # the record was torn; the next driver cut it off
    parts = JournalParts(store, local)
    parts.pushed = 150
    append(local, 10)
    parts.push()
    assert fetched(store, tmp_path) == local.read_bytes()


def test_of_a_long_journal_the_ends_are_fetched(
    store: FsspecFilesystem, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.write_text("".join(f"line {number:03d}\n" for number in range(200)))
    JournalParts(store, local).push()
    fetched: list[str] = []
    really = FsspecFilesystem.download

    def download(self: FsspecFilesystem, name: str, into: Path) -> None:
        fetched.append(name)
        really(self, name, into)

    monkeypatch.setattr(FsspecFilesystem, "download", download)
    assert not fetch_ends(store, "journal.jsonl", tmp_path / "ends")
    assert len(fetched) == 3
    lines = (tmp_path / "ends").read_text().splitlines()
    assert lines[:11] == [f"line {number:03d}" for number in range(11)]
    assert lines[11:] == [f"line {number:03d}" for number in range(200 - len(lines[11:]), 200)]
    assert len(lines) > 25


@pytest.mark.parametrize("size", [0, 50, 99, 100, 101, 200, 250, 300, 301, 400])
def test_a_shorter_one_is_fetched_whole(store: FsspecFilesystem, local: Path, tmp_path: Path, size: int) -> None:
    append(local, size + 1)
    JournalParts(store, local).push()
    is_whole = fetch_ends(store, "journal.jsonl", tmp_path / "ends")
    assert is_whole == (size < 300)
    if is_whole:
        assert (tmp_path / "ends").read_bytes() == local.read_bytes()
