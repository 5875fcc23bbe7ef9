"""The manifest's own rules, and what a process remembers of what it has verified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.air import manifest as manifests
from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointCorruptError
from paceline.air.manifest import (
    FileEntry,
    Manifest,
    accept_seal,
    find_manifest,
    hash_of,
    parse_manifest,
    seal,
    verify,
    verify_files,
)

CONTENT = b"m" * 1000
SECOND_NS = 10**9


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that nobody in this process has read."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "model").write_bytes(CONTENT)
    files = {"model": FileEntry(len(CONTENT), hash_of(CONTENT))}
    (directory / "MANIFEST.json").write_bytes(Manifest(files).encode())
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + SECOND_NS)  # what has just changed is not remembered
    return directory


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed from now on."""
    names: list[str] = []
    hash_file = manifests.hash_file

    def noting(path: Path) -> tuple[int, str]:
        names.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(manifests, "hash_file", noting)
    return names


def read(directory: Path) -> None:
    with Checkpoint.from_directory(directory).as_directory():
        pass


def test_a_process_hashes_a_file_once(checkpoint: Path, hashed: list[str]) -> None:
    for _ in range(3):
        read(checkpoint)
    assert hashed == ["model"]


def test_a_file_that_was_touched_is_hashed_again(checkpoint: Path, hashed: list[str]) -> None:
    read(checkpoint)
    os.utime(checkpoint / "model", (1, 1))
    read(checkpoint)
    (checkpoint / "copy").write_bytes(CONTENT)
    (checkpoint / "copy").replace(checkpoint / "model")
    read(checkpoint)
    assert hashed == ["model"] * 3
    status = (checkpoint / "model").stat()
    (checkpoint / "model").write_bytes(b"n" * 1000)
    os.utime(checkpoint / "model", ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CheckpointCorruptError):
        read(checkpoint)


def test_verify_always_hashes(checkpoint: Path, hashed: list[str]) -> None:
    read(checkpoint)
    Checkpoint.from_directory(checkpoint).verify()
    verify(checkpoint)
    assert hashed == ["model"] * 3


def test_a_file_that_has_just_changed_is_not_remembered(
    checkpoint: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = (checkpoint / "model").stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: changed + 1)
    read(checkpoint)
    read(checkpoint)
    assert hashed == ["model"] * 2


def test_only_wanted_files_are_verified(checkpoint: Path, hashed: list[str]) -> None:
    manifest = find_manifest(checkpoint)
    assert manifest is not None
    (checkpoint / "stranger").touch()
    (checkpoint / "model").unlink()
    verify_files(checkpoint, manifest, wanted=lambda name: False)
    with pytest.raises(CheckpointCorruptError, match="missing"):
        verify_files(checkpoint, manifest, wanted=lambda name: name == "model")
    assert hashed == []


def test_what_one_process_has_verified_another_need_not_hash(checkpoint: Path, hashed: list[str]) -> None:
    assert seal(checkpoint) is None
    script = (
        "import sys, time; from pathlib import Path; from paceline.air import manifest\n"
        f"now = time.time_ns; time.time_ns = lambda: now() + {SECOND_NS}\n"
        "manifest.verify(Path(sys.argv[1])); print(manifest.seal(Path(sys.argv[1])))"
    )
    run = subprocess.run([sys.executable, "-c", script, str(checkpoint)], capture_output=True, text=True, check=True)
    sealed = run.stdout.strip()
    accept_seal(checkpoint, sealed)
    read(checkpoint)
    assert hashed == []
    assert seal(checkpoint) == sealed


def test_a_seal_is_worth_nothing_once_a_file_has_changed(checkpoint: Path, hashed: list[str]) -> None:
    verify(checkpoint)
    sealed = seal(checkpoint)
    assert sealed is not None
    (checkpoint / "model").write_bytes(b"n" * 1000)
    accept_seal(checkpoint, sealed)
    with pytest.raises(CheckpointCorruptError):
        read(checkpoint)
    (checkpoint / "model").unlink()
    assert seal(checkpoint) is None
    accept_seal(checkpoint, sealed)
    shutil.rmtree(checkpoint)
    assert seal(checkpoint) is None
    accept_seal(checkpoint, sealed)


def test_what_is_remembered_is_bounded(checkpoint: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MOST_REMEMBERED", 2)
    copies = [Path(shutil.copytree(checkpoint, checkpoint.with_name(name))) for name in "abc"]
    for copy in copies:
        read(copy)
    assert len(hashed) == 3
    read(copies[-1])
    assert len(hashed) == 3
    read(copies[0])
    assert len(hashed) == 4, "nothing was forgotten"


@pytest.mark.parametrize(("mode", "expected"), [(0o4777, 0o755), (0o2666, 0o644), (0o640, 0o640), (0, 0o400)])
def test_modes_are_masked(mode: int, expected: int) -> None:
    text = Manifest({"tool": FileEntry(1, hash_of(b"x"), mode)}).encode()
    manifest = parse_manifest(text, "here")
    assert manifest is not None
    assert manifest.files["tool"].mode == expected


def test_a_fifo_in_place_of_a_file_is_not_waited_for(checkpoint: Path) -> None:
    (checkpoint / "model").unlink()
    os.mkfifo(checkpoint / "model")
    with pytest.raises(CheckpointCorruptError, match="regular file"):
        read(checkpoint)


def test_other_software_may_use_the_name(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"version": 3}))
    assert find_manifest(tmp_path) is None
    for damaged in ("", "[]", "{", '{"files": {}}'):
        (tmp_path / "MANIFEST.json").write_text(damaged)
        with pytest.raises(CheckpointCorruptError):
            find_manifest(tmp_path)
