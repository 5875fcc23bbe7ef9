"""A remote checkpoint exists exactly when its manifest does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.air.errors import CheckpointCorruptError, CheckpointNotFoundError, StorageError
from paceline.storage.commit import Stager, commit, verify
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "trial")
    run_dir.create()
    (tmp_path / "source" / "empty").mkdir(parents=True)
    (tmp_path / "source" / "model.bin").write_bytes(os.urandom(100_000))
    (tmp_path / "source" / "deep dir").mkdir()
    (tmp_path / "source" / "deep dir" / "ünï").write_text("x")
    (tmp_path / "source" / "deep dir" / "ünï").chmod(0o640)
    for number in (0, 1):
        with Stager(run_dir.staging(number, 0)) as stager:
            stager.add_directory(tmp_path / "source")
            stager.finish({"number": number})
        commit(stager.directory, run_dir.checkpoint(number))
    return run_dir


@pytest.fixture(params=["memory", "s3"])
def mirror(request: pytest.FixtureRequest, run_dir: RunDir) -> Mirror:
    return Mirror(request.getfixturevalue(request.param), run_dir)


def test_a_checkpoint_comes_back_as_it_was(mirror: Mirror, run_dir: RunDir, tmp_path: Path) -> None:
    mirror.push_checkpoint(0)
    mirror.push_checkpoint(1)
    assert mirror.checkpoint_numbers() == [0, 1]
    (tmp_path / "other").mkdir()
    back = RunDir(tmp_path / "other")
    assert mirror.pull_checkpoint(1, back.checkpoint(1)) == verify(run_dir.checkpoint(1))
    assert verify(back.checkpoint(1)).facts == {"number": 1}
    assert (back.checkpoint(1) / "deep dir" / "ünï").stat().st_mode & 0o777 == 0o640
    assert (back.checkpoint(1) / "empty").is_dir()
    assert os.listdir(back.root) == ["checkpoint_000001"]


def test_removing_ends_it(mirror: Mirror) -> None:
    mirror.push_checkpoint(0)
    mirror.push_checkpoint(1)
    mirror.remove_checkpoint(0)
    mirror.remove_checkpoint(7)
    assert mirror.checkpoint_numbers() == [1]
    assert all(name.startswith("checkpoint_000001/") for name in mirror.filesystem.list())


class Failing:
    """A filesystem that fails from the n-th change on, as if the process had died there."""

    def __init__(self, filesystem: FsspecFilesystem, changes: int) -> None:
        self._filesystem = filesystem
        self._changes_left = changes

    def __getattr__(self, name: str) -> object:
        if name in ("upload", "delete", "write_bytes", "write_text", "create_exclusive"):
            if self._changes_left == 0:
                raise StorageError("cut off")
            self._changes_left -= 1
        return getattr(self._filesystem, name)


def test_cut_off_at_any_step_an_upload_is_not_listed(memory: FsspecFilesystem, run_dir: RunDir) -> None:
    steps = 0
    while True:
        try:
            Mirror(Failing(memory, steps), run_dir).push_checkpoint(0)  # type: ignore[arg-type]
            break
        except StorageError:
            assert Mirror(memory, run_dir).checkpoint_numbers() == []
            steps += 1
    assert steps == 4  # the old manifest, two files, the manifest
    assert Mirror(memory, run_dir).checkpoint_numbers() == [0]


def test_a_removal_that_is_cut_off_leaves_nothing_listed(memory: FsspecFilesystem, run_dir: RunDir) -> None:
    Mirror(memory, run_dir).push_checkpoint(0)
    with pytest.raises(StorageError, match="cut off"):
        Mirror(Failing(memory, 1), run_dir).remove_checkpoint(0)  # type: ignore[arg-type]
    assert Mirror(memory, run_dir).checkpoint_numbers() == []
    assert memory.list() != []


def test_a_damaged_remote_checkpoint_is_not_committed_locally(mirror: Mirror, run_dir: RunDir, tmp_path: Path) -> None:
    mirror.push_checkpoint(0)
    mirror.filesystem.write_text("checkpoint_000000/model.bin", "damaged")
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointCorruptError, match=r"model\.bin"):
        mirror.pull_checkpoint(0, tmp_path / "other" / "checkpoint_000000")
    with pytest.raises(CheckpointNotFoundError):
        mirror.pull_checkpoint(5, tmp_path / "other" / "checkpoint_000005")
    assert os.listdir(tmp_path / "other") == []


def test_a_manifest_on_the_store_cannot_set_dangerous_modes(mirror: Mirror, run_dir: RunDir, tmp_path: Path) -> None:
    manifest = verify(run_dir.checkpoint(0))
    files = {name: replace(entry, mode=0o4777) for name, entry in manifest.files.items()}
    mirror.push_checkpoint(0)
    mirror.filesystem.write_text("checkpoint_000000/MANIFEST.json", replace(manifest, files=files).encode().decode())
    (tmp_path / "other").mkdir()
    pulled = tmp_path / "other" / "checkpoint_000000"
    mirror.pull_checkpoint(0, pulled)
    assert {(pulled / name).stat().st_mode & 0o7777 for name in files} == {0o755}


def test_state_goes_up_when_it_changed_and_comes_back(mirror: Mirror, run_dir: RunDir, tmp_path: Path) -> None:
    run_dir.journal.write_text("one")
    run_dir.params.write_text("{}")
    (run_dir.root / "events.out.tfevents.1.host").write_bytes(b"\0")
    run_dir.lock.write_text("never uploaded")
    mirror.push_state()
    mirror.filesystem.write_text("params.json", "changed remotely")
    run_dir.journal.write_text("one two")
    mirror.push_state()
    assert mirror.filesystem.list() == ["events.out.tfevents.1.host", "journal.jsonl", "params.json"]
    mirror.pull_state(tmp_path / "other")
    back = RunDir(tmp_path / "other")
    assert back.journal.read_text() == "one two"
    assert back.params.read_text() == "changed remotely"  # unchanged here, so not sent again
    assert not back.lock.exists()


def test_files_that_repeat_the_rows_do_not_always_go_up(memory: FsspecFilesystem, run_dir: RunDir) -> None:
    mirror = Mirror(memory, run_dir)
    uploaded = []
    for rows in range(1, 301):
        run_dir.journal.write_bytes(b"x" * 100 * rows)
        run_dir.progress_csv.write_text("row\n" * rows)
        mirror.push_state()
        uploaded.append(memory.read_text("progress.csv").count("row"))
    assert len(set(uploaded)) < 35
    assert all(there >= rows / 1.25 for rows, there in enumerate(uploaded, 1))
    mirror.push_state(complete=True)
    assert memory.read_text("progress.csv") == run_dir.progress_csv.read_text()
    run_dir.progress_csv.write_text("row\n" * 7)  # cut back by a retry
    mirror.push_state()
    assert memory.read_text("progress.csv") == "row\n" * 7
