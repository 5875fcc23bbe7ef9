"""Many journals, one thread that puts them on disk."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from paceline.storage.files import MOST_WAITING, SharedSync
from paceline.storage.journal import Journal, read
from tests.descriptors import open_files


def test_what_is_appended_can_be_read_at_once_and_files_are_closed_in_the_end(tmp_path: Path) -> None:
    shared = SharedSync()
    journals = [Journal(tmp_path / str(number), shared) for number in range(5)]
    for number, journal in enumerate(journals):
        journal.append({"n": number})
        journal.flush()
        assert list(read(journal.path)) == [{"n": number}]
        journal.append({"last": True})
        journal.close()
        journal.close()
    shared.close()
    assert not [path for path in open_files() if path.startswith(str(tmp_path))]
    for number, journal in enumerate(journals):
        assert list(read(journal.path)) == [{"n": number}, {"last": True}]


def test_everything_is_synced(tmp_path: Path, synced: list[Path]) -> None:
    shared = SharedSync()
    still_open, closed = Journal(tmp_path / "open", shared), Journal(tmp_path / "closed", shared)
    for journal in (still_open, closed):
        journal.append({"n": 1})
        journal.flush()
    closed.close()
    shared.close()
    assert {tmp_path.parent, tmp_path, tmp_path / "open", tmp_path / "closed"} <= set(synced)
    still_open.close()
    shared.close()


def test_many_closed_files_do_not_pile_up_while_the_disk_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, stuck, full, free = os.fdatasync, threading.Event(), threading.Event(), threading.Event()

    def fdatasync(descriptor: int) -> None:
        stuck.set()
        assert free.wait(60)
        really(descriptor)

    def use_journals() -> None:
        for number in range(2 * MOST_WAITING):
            journal = Journal(tmp_path / str(number), shared)
            journal.append({"n": number})
            journal.close()
            assert number or stuck.wait(60)  # the first file is under way, and stays there
            most.append(len([path for path in open_files() if path.startswith(f"{tmp_path}/")]))
            if number + 1 == MOST_WAITING:
                full.set()

    most: list[int] = []
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with contextlib.closing(SharedSync()) as shared:
        user = threading.Thread(target=use_journals)
        user.start()
        assert full.wait(60)
        user.join(0.5)  # it waits; without a limit it would open more files now
        free.set()
        user.join()
    assert max(most) == MOST_WAITING
    assert len(most) == 2 * MOST_WAITING


def test_a_failed_sync_is_told_to_the_next_who_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fdatasync(descriptor: int) -> None:
        raise OSError(5, "broken disk")

    shared = SharedSync()
    journal = Journal(tmp_path / "journal", shared)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    journal.append({"n": 1})
    with pytest.raises(OSError, match="broken disk"):
        journal.sync()
    with pytest.raises(OSError, match="broken disk"):
        journal.append({"n": 2})
    journal.close()
    shared.close()


def test_a_file_that_cannot_be_closed_keeps_no_other_open(tmp_path: Path) -> None:
    shared = SharedSync()
    path = tmp_path / "file"
    shared.take_over(1_000_000)  # no such descriptor
    shared.take_over(os.open(path, os.O_WRONLY | os.O_CREAT))
    shared.close()
    assert str(path) not in open_files()


def test_the_thread_ends_if_the_sync_is_closed_just_before_a_pass() -> None:
    shared = SharedSync()

    class ClosedTooLateToBeSeen(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()  # what close() does before it waits for the thread, after the time of this wait was up
            shared._is_due.set()
            return False

    shared._closing = ClosedTooLateToBeSeen()
    shared.note(1, lambda: None)
    assert shared._thread is not None
    shared._thread.join(30)
    assert not shared._thread.is_alive()
    shared.close()
