"""Committed, verified, quarantined, merged, deleted; and what is left when a step is cut off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError, StorageError
from paceline.air.manifest import read_manifest, verify
from paceline.storage.commit import Stager, commit, delete_tree, merge_staged, quarantine, to_trash
from paceline.storage.run_dir import MANIFEST_NAME, RunDir


def stage(path: Path, files: dict[str, bytes]) -> Path:
    with Stager(path) as stager:
        for name, content in files.items():
            with stager.open(name) as file:
                file.write(content)
        stager.finish({"number": 0})
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    commit(stage(tmp_path / "staging", {"model.bin": b"0123456789" * 10, "sub/b.txt": b"b"}), tmp_path / "done")
    return tmp_path / "done"


def test_commit_renames_and_verify_agrees(checkpoint: Path) -> None:
    assert not (checkpoint.parent / "staging").exists()
    manifest = verify(checkpoint)
    assert set(manifest.files) == {"model.bin", "sub/b.txt"}
    assert manifest.size == 101
    assert manifest.facts == {"number": 0}


def test_a_committed_name_is_never_replaced(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for taken in (checkpoint, tmp_path / "empty"):
        staging = stage(tmp_path / f"staging-{taken.name}", {"x": b""})
        with pytest.raises(CheckpointError, match=f"{taken} exists"):
            commit(staging, taken)
        assert staging.exists()
    assert "model.bin" in verify(checkpoint).files


def test_commit_into_a_directory_that_is_gone(tmp_path: Path) -> None:
    staging = stage(tmp_path / "staging", {"x": b""})
    with pytest.raises(StorageError, match="gone/checkpoint_000000"):
        commit(staging, tmp_path / "gone" / "checkpoint_000000")
    assert not (tmp_path / "gone").exists()


def test_a_flipped_bit_in_any_byte_of_any_file_is_found(checkpoint: Path) -> None:
    for name in ("model.bin", "sub/b.txt", MANIFEST_NAME):
        path = checkpoint / name
        content = path.read_bytes()
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=path.name):
                verify(checkpoint)
        path.write_bytes(content)
        verify(checkpoint)


def test_every_truncation_is_found(checkpoint: Path) -> None:
    for name in ("model.bin", MANIFEST_NAME):
        path = checkpoint / name
        content = path.read_bytes()
        for length in range(len(content)):
            path.write_bytes(content[:length])
            with pytest.raises(CheckpointCorruptError, match=path.name):
                verify(checkpoint)
        path.write_bytes(content)
    verify(checkpoint)


def test_verify_says_what_differs(checkpoint: Path) -> None:
    (checkpoint / "extra").touch()
    with pytest.raises(CheckpointCorruptError, match="extra file 'extra'"):
        verify(checkpoint)
    (checkpoint / "extra").unlink()
    (checkpoint / "model.bin").write_bytes(b"short")
    with pytest.raises(CheckpointCorruptError, match=r"'model\.bin'.*\b5 bytes.*\b100\b"):
        verify(checkpoint)
    (checkpoint / "model.bin").write_bytes(b"9876543210" * 10)
    with pytest.raises(CheckpointCorruptError, match=r"content.*'model\.bin'"):
        verify(checkpoint)
    (checkpoint / "model.bin").unlink()
    with pytest.raises(CheckpointCorruptError, match=r"'model\.bin'.*missing"):
        verify(checkpoint)
    (checkpoint / MANIFEST_NAME).unlink()
    with pytest.raises(CheckpointNotFoundError, match=MANIFEST_NAME):
        verify(checkpoint)


def test_a_link_in_place_of_a_file_is_found(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes((checkpoint / "model.bin").read_bytes())
    (checkpoint / "model.bin").unlink()
    (checkpoint / "model.bin").symlink_to(tmp_path / "copy")
    with pytest.raises(CheckpointCorruptError, match=r"model\.bin"):
        verify(checkpoint)


def test_a_manifest_that_points_outside_is_refused(checkpoint: Path) -> None:
    from dataclasses import replace

    manifest = read_manifest(checkpoint)
    for name in ("../model.bin", "/etc/passwd", "a/../../b", "", "nul\0"):
        files = {**manifest.files, name: manifest.files["model.bin"]}
        (checkpoint / MANIFEST_NAME).write_bytes(replace(manifest, files=files).encode())
        with pytest.raises(CheckpointCorruptError, match=re.escape(repr(name))):
            read_manifest(checkpoint)


def test_a_manifest_of_a_newer_version_is_refused_as_such(checkpoint: Path) -> None:
    path = checkpoint / MANIFEST_NAME
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match="format 2"):
        read_manifest(checkpoint)


def test_quarantine_keeps_the_content_under_a_name_nothing_lists(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    names = []
    for _ in range(2):
        commit(stage(run_dir.staging(3, 0), {"x": b"x"}), run_dir.checkpoint(3))
        names.append(quarantine(run_dir.checkpoint(3)).name)
    assert names[0] == "checkpoint_000003.corrupt"
    assert names[1].startswith("checkpoint_000003.corrupt-")
    assert run_dir.checkpoints() == []
    assert all((tmp_path / name / "x").exists() for name in names)


def test_deletion_goes_through_the_trash(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    commit(stage(run_dir.staging(3, 0), {"a/b/c": b"x"}), run_dir.checkpoint(3))
    trash = to_trash(run_dir.checkpoint(3))
    assert run_dir.checkpoints() == []
    assert trash.name.startswith(".trash-checkpoint_000003-")
    delete_tree(trash)
    delete_tree(trash)
    assert list(tmp_path.iterdir()) == []


def test_delete_tree_removes_a_link_and_not_what_it_points_at(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    delete_tree(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["real"]


def test_ranks_are_merged(tmp_path: Path) -> None:
    main = stage(tmp_path / "0", {"rank_0.bin": b"0", "same": b"s", ".metadata.json": b"{}"})
    one = stage(tmp_path / "1", {"rank_1.bin": b"1", "same": b"s", ".metadata.json": b'{"other":1}'})
    (tmp_path / "source" / "shards").mkdir(parents=True)
    (tmp_path / "source" / "shards" / "2.bin").write_bytes(b"2")
    with Stager(tmp_path / "2") as stager:
        stager.add_directory(tmp_path / "source")
        stager.finish({})
    merged = merge_staged(main, {1: one, 2: tmp_path / "2"})
    assert set(merged.files) == {"rank_0.bin", "rank_1.bin", "same", "shards/2.bin", ".metadata.json"}
    assert merged.facts == {"number": 0}
    assert verify(main) == merged
    assert (main / ".metadata.json").read_bytes() == b"{}"
    assert not one.exists()
    assert not (tmp_path / "2").exists()


def test_an_empty_directory_that_another_rank_fills_is_not_empty(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"source{rank}" / "shards").mkdir(parents=True)
    (tmp_path / "source1" / "shards" / "x").touch()
    for rank in (0, 1):
        with Stager(tmp_path / str(rank)) as stager:
            stager.add_directory(tmp_path / f"source{rank}")
            stager.finish({})
    merged = merge_staged(tmp_path / "0", {1: tmp_path / "1"})
    assert merged.empty_directories == ()
    verify(tmp_path / "0")


def test_different_content_under_one_name_is_refused_and_nothing_moves(tmp_path: Path) -> None:
    main = stage(tmp_path / "0", {"a": b"0"})
    others = {1: stage(tmp_path / "1", {"b": b"1", "c": b"1"}), 2: stage(tmp_path / "2", {"c": b"2"})}
    with pytest.raises(CheckpointError, match=r"1 and 2.*'c'"):
        merge_staged(main, others)
    assert set(verify(main).files) == {"a"}
    assert set(verify(others[1]).files) == {"b", "c"}


POINTS = [
    ("before_stage_create", False),
    ("after_stage_create", False),
    ("after_stage_file", False),
    ("after_stage_file:times=2", False),
    ("after_stage_fsync", False),
    ("after_stage_manifest", False),
    ("before_commit_rename", False),
    ("after_commit_rename", True),
    ("before_journal_append", True),
    ("after_journal_append", True),
    ("before_trash", True),
    ("after_trash", True),
    ("after_delete", True),
]
LIFE_OF_A_CHECKPOINT = (
    "import sys; from pathlib import Path\n"
    "from paceline.storage.commit import Stager, commit, delete_tree, to_trash\n"
    "from paceline.storage.journal import Journal\n"
    "from paceline.storage.run_dir import RunDir\n"
    "run_dir = RunDir(Path(sys.argv[1]))\n"
    "journal = Journal(run_dir.journal)\n"
    "with Stager(run_dir.staging(1, 0)) as stager:\n"
    "    stager.add_directory(sys.argv[2]); stager.finish({'number': 1})\n"
    "commit(stager.directory, run_dir.checkpoint(1))\n"
    "journal.append({'number': 1}); journal.sync()\n"
    "delete_tree(to_trash(run_dir.checkpoint(0)))\n"
)


@pytest.mark.parametrize(("point", "committed"), POINTS, ids=[point for point, _ in POINTS])
def test_killed_at_any_step_the_directory_holds_whole_checkpoints_only(
    tmp_path: Path, point: str, committed: bool
) -> None:
    run_dir = RunDir(tmp_path / "trial")
    run_dir.create()
    commit(stage(run_dir.staging(0, 0), {"old": b"old"}), run_dir.checkpoint(0))
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_bytes(name.encode() * 1000)
    environment = {**os.environ, "PACELINE_FAULT": f"{point}:SIGKILL"}
    done = subprocess.run([sys.executable, "-c", LIFE_OF_A_CHECKPOINT, run_dir.root, source], env=environment)
    assert done.returncode == -9
    numbers = [number for number, path in run_dir.checkpoints() if verify(path)]
    assert (1 in numbers) == committed
    assert (0 in numbers) == (point not in ("after_trash", "after_delete"))
    run_dir.sweep()
    left = {path.name for path in run_dir.root.iterdir()} - {"journal.jsonl", "logs"}
    assert left == {f"checkpoint_{number:06d}" for number in numbers}
