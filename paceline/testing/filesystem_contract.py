"""What every Filesystem must do. Subclass the class and give it a `filesystem` fixture."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from paceline.storage.filesystem import Filesystem


class FilesystemContract:
    """The fixture `filesystem` must give an empty place for each test."""

    @pytest.fixture
    def filesystem(self) -> Filesystem:
        raise NotImplementedError("give the subclass a fixture named filesystem")

    def test_check_leaves_nothing(self, filesystem: Filesystem) -> None:
        filesystem.check()
        assert filesystem.list() == []

    def test_text_round_trip(self, filesystem: Filesystem) -> None:
        filesystem.write_text("deep/er/ünï.txt", "line\n训练")
        assert filesystem.read_text("deep/er/ünï.txt") == "line\n训练"
        filesystem.write_text("deep/er/ünï.txt", "")
        assert filesystem.read_text("deep/er/ünï.txt") == ""

    def test_files_round_trip(self, filesystem: Filesystem, tmp_path: Path) -> None:
        content = bytes(range(256)) * 5000
        for name, part in (("empty", b""), ("some", content)):
            (tmp_path / name).write_bytes(part)
            filesystem.upload(tmp_path / name, f"data/with space/{name}")
            filesystem.download(f"data/with space/{name}", tmp_path / f"{name}-back")
            assert (tmp_path / f"{name}-back").read_bytes() == part

    def test_an_upload_replaces(self, filesystem: Filesystem, tmp_path: Path) -> None:
        for text in ("first, longer", "second"):
            (tmp_path / "file").write_text(text)
            filesystem.upload(tmp_path / "file", "file")
            assert filesystem.read_text("file") == text
        assert filesystem.list() == ["file"]

    def test_a_copy_is_a_file_of_its_own(self, filesystem: Filesystem, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(bytes(range(256)) * 5000)
        filesystem.upload(tmp_path / "file", "a/file")
        filesystem.write_text("b/copy", "is replaced")
        filesystem.copy("a/file", "b/copy")
        filesystem.delete("a")
        filesystem.download("b/copy", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == (tmp_path / "file").read_bytes()
        assert filesystem.list() == ["b/copy"]

    def test_list_sees_what_is_there_now(self, filesystem: Filesystem) -> None:
        assert filesystem.list() == []
        assert filesystem.list("a") == []
        for name in ("b.txt", "a/2", "a/1", "ab/3"):
            filesystem.write_text(name, "x")
            assert name in filesystem.list()
        assert filesystem.list() == ["a/1", "a/2", "ab/3", "b.txt"]
        assert filesystem.list("a") == ["a/1", "a/2"]
        filesystem.delete("a/1")
        assert filesystem.list("a") == ["a/2"]

    def test_entries_are_those_of_one_directory(self, filesystem: Filesystem) -> None:
        assert [list(names) for names in filesystem.entries()] == [[], []]
        for name in ("b.txt", "a/2", "a/deep/1", "ab/3"):
            filesystem.write_text(name, "x")
        assert [list(names) for names in filesystem.entries()] == [["b.txt"], ["a", "ab"]]
        assert [list(names) for names in filesystem.entries("a")] == [["2"], ["deep"]]
        assert [list(names) for names in filesystem.entries("never")] == [[], []]

    def test_exists_is_about_files(self, filesystem: Filesystem) -> None:
        assert not filesystem.exists("a/file")
        filesystem.write_text("a/file", "x")
        assert filesystem.exists("a/file")
        assert not filesystem.exists("a")
        filesystem.delete("a/file")
        assert not filesystem.exists("a/file")

    def test_delete_takes_files_and_directories(self, filesystem: Filesystem) -> None:
        for name in ("a/1", "a/b/2", "ab", "c"):
            filesystem.write_text(name, "x")
        filesystem.delete("a")
        filesystem.delete("c")
        filesystem.delete("never")
        assert filesystem.list() == ["ab"]

    def test_what_is_missing_is_file_not_found(self, filesystem: Filesystem, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            filesystem.read_text("missing")
        with pytest.raises(FileNotFoundError):
            filesystem.download("missing", tmp_path / "missing")

    def test_create_exclusive_refuses_the_second(self, filesystem: Filesystem) -> None:
        assert filesystem.create_exclusive("lock", "first")
        assert not filesystem.create_exclusive("lock", "second")
        assert filesystem.read_text("lock") == "first"
        filesystem.delete("lock")
        assert filesystem.create_exclusive("lock", "third")

    def test_create_exclusive_has_one_winner(self, filesystem: Filesystem) -> None:
        start, won = threading.Barrier(4), []

        def compete(number: int) -> None:
            start.wait()
            if filesystem.create_exclusive("lock", str(number)):
                won.append(number)

        threads = [threading.Thread(target=compete, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [str(number) for number in won] == [filesystem.read_text("lock")]

    def test_stale_uploads_can_always_be_aborted(self, filesystem: Filesystem) -> None:
        filesystem.write_text("kept", "x")
        filesystem.abort_stale_uploads()
        assert filesystem.read_text("kept") == "x"

    def test_bytes_are_stored_as_they_are(self, filesystem: Filesystem, tmp_path: Path) -> None:
        filesystem.write_bytes("deep/bytes", b"\xff\0\r\n")
        filesystem.download("deep/bytes", tmp_path / "bytes")
        assert (tmp_path / "bytes").read_bytes() == b"\xff\0\r\n"

    def test_the_age_of_a_file_is_never_exaggerated(self, filesystem: Filesystem) -> None:
        began = time.monotonic()
        filesystem.write_text("young", "x")
        assert 0.0 <= filesystem.age("young") <= time.monotonic() - began
        assert filesystem.age("missing") == 0.0
        assert 0.0 <= filesystem.age_seen("young") <= time.monotonic() - began
        assert filesystem.age_seen("missing") == 0.0
        assert filesystem.list() == ["young"]
