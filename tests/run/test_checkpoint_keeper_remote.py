"""Checkpoints of a run on remote storage: uploads, deletions, and what another driver finds."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.air import Checkpoint, CheckpointConfig
from paceline.air.errors import StorageError
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.checkpoint_target import RemotePrefix
from paceline.run.messages import StagedCheckpoint
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal import Journal
from paceline.storage.mirror import Mirror, staging_prefix
from paceline.storage.run_dir import RunDir
from paceline.storage.stager import Stager
from tests.run.keeping import commit, on_disk, records, refuse, retire, stage

# -- on remote storage --------------------------------------------------------------------


@pytest.fixture
def mirror(run_dir: RunDir) -> Iterator[Mirror]:
    import fsspec

    root = f"/{uuid.uuid4().hex}"
    yield Mirror(FsspecFilesystem(f"memory:/{root}"), run_dir)
    store = fsspec.filesystem("memory")
    if store.exists(root):
        store.rm(root, recursive=True)


def test_a_damaged_remote_checkpoint_is_passed_over(run_dir: RunDir, journal: Journal, mirror: Mirror) -> None:
    first = CheckpointKeeper(CheckpointConfig(), run_dir, journal, mirror)
    for number in range(3):
        commit(first, number)
    first.close()
    mirror.filesystem.write_text("checkpoint_000002/model", "weighty")
    mirror.filesystem.delete("checkpoint_000001/model")
    for number in range(3):
        shutil.rmtree(run_dir.checkpoint(number))
    second = CheckpointKeeper(CheckpointConfig(), run_dir, journal, mirror)
    second.load(records(journal))
    newest = second.newest_valid()
    assert newest is not None
    assert newest.number == 0
    assert ["checkpoint_000002" in second.warnings[0], "checkpoint_000001" in second.warnings[1]] == [True, True]
    assert on_disk(run_dir) == [0]
    third = CheckpointKeeper(CheckpointConfig(), run_dir, journal, mirror)
    third.load(records(journal))
    assert [kept.number for kept in third.committed] == [0]
    third.close()
    assert mirror.filesystem.exists("checkpoint_000002/model")  # damaged ones stay for the user to look at


def test_a_remote_deletion_that_failed_is_tried_again(
    run_dir: RunDir, journal: Journal, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal, mirror)
    with monkeypatch.context() as broken:
        broken.setattr(mirror, "remove_checkpoint", refuse)
        commit(keeper, 0)
        commit(keeper, 1)
        retire(keeper)
        commit(keeper, 2)  # after the deletion: there is one thread
        assert mirror.checkpoint_numbers() == [0, 1, 2]
    retire(keeper)
    keeper.close()
    assert mirror.checkpoint_numbers() == [2]
    (warning,) = keeper.warnings
    assert "checkpoint 0 " in warning
    assert "not now" in warning


def test_a_restore_finishes_remote_deletions(
    run_dir: RunDir, journal: Journal, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal, mirror)
    with monkeypatch.context() as broken:
        broken.setattr(mirror, "remove_checkpoint", refuse)
        commit(first, 0)
        commit(first, 1)
        retire(first)
        first.close()
    assert "restored" in first.warnings[0]
    assert mirror.checkpoint_numbers() == [0, 1]
    second = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal, mirror)
    second.load(records(journal))
    second.close()
    assert mirror.checkpoint_numbers() == [1]
    assert [kept.number for kept in second.committed] == [1]


def test_the_store_need_not_keep_what_is_copied_from_this_disk(
    run_dir: RunDir, journal: Journal, mirror: Mirror
) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal, mirror)
    commit(keeper, 0)
    release = keeper.pin(0)
    commit(keeper, 1)
    retire(keeper)
    keeper.close()  # Afterwards the store may belong to another driver.
    assert mirror.checkpoint_numbers() == [1]
    assert on_disk(run_dir) == [0, 1]
    release()
    assert on_disk(run_dir) == [1]


def test_closing_tells_of_uploads_that_failed(
    run_dir: RunDir, journal: Journal, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "push_checkpoint", refuse)
    keeper = CheckpointKeeper(CheckpointConfig(), run_dir, journal, mirror)
    keeper.commit(stage(run_dir, 0), {}, 1, {})
    keeper.close()
    (warning,) = keeper.warnings
    assert re.search(r"checkpoint_000000.*memory://", warning)
    assert "not now" in warning


def test_an_interrupted_driver_does_not_wait_for_uploads(
    run_dir: RunDir, journal: Journal, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    upload = mirror.filesystem.upload

    def slow(local: Path, name: str) -> None:
        begun.set()
        go_on.wait()
        upload(local, name)

    monkeypatch.setattr(mirror.filesystem, "upload", slow)
    keeper = CheckpointKeeper(CheckpointConfig(), run_dir, journal, mirror)
    first = keeper.commit(stage(run_dir, 0), {}, 1, {})
    second = keeper.commit(stage(run_dir, 1), {}, 2, {})
    begun.wait()
    keeper.close(complete=False)
    assert [warning.split()[0] for warning in keeper.warnings] == ["checkpoint_000000", "checkpoint_000001"]
    assert second.upload is not None
    assert second.upload.cancelled()
    go_on.set()
    with pytest.raises(StorageError, match="checkpoint_000000"):
        first.check()
    assert mirror.checkpoint_numbers() == []  # what another driver may own by now is left alone
    assert not mirror.has_run()


# -- with ranks elsewhere -----------------------------------------------------------------


@pytest.fixture
def elsewhere(run_dir: RunDir, journal: Journal, mirror: Mirror) -> CheckpointKeeper:
    """A keeper whose ranks upload to the store themselves."""
    keeper = CheckpointKeeper(CheckpointConfig(), run_dir, journal, mirror)
    keeper.target = RemotePrefix(run_dir, mirror)
    return keeper


def test_ranks_are_not_sent_to_a_checkpoint_that_is_still_on_its_way(
    elsewhere: CheckpointKeeper, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    upload = mirror.filesystem.upload
    monkeypatch.setattr(mirror.filesystem, "upload", lambda *given: go_on.wait() and upload(*given))
    adopted = elsewhere.adopt(Checkpoint.from_dict({"a": 1}), 3, {}, "another run")
    assert elsewhere.target.uri_of(0) is None
    go_on.set()
    adopted.check()
    uri = elsewhere.target.uri_of(0)
    assert uri is not None
    assert Checkpoint.from_uri(uri).to_dict()["a"] == 1
    monkeypatch.setattr(mirror.filesystem, "exists", refuse)
    assert elsewhere.target.uri_of(0) is None, "a store out of reach is not the end of the run"
    elsewhere.close()


def uploaded(keeper: CheckpointKeeper, tmp_path: Path) -> StagedCheckpoint:
    """What a rank has put into the store."""
    with Stager(tmp_path / "rank") as stager:
        with stager.open("file") as file:
            file.write(b"content")
        manifest = stager.finish({"number": 0, "iteration": 1})
    assert keeper.mirror is not None
    keeper.mirror.filesystem.upload(tmp_path / "rank" / "file", f"{staging_prefix(0)}/staged/file")
    return StagedCheckpoint(b"staged", 0, 7, None, manifest.encode())


def test_a_commit_counts_though_what_was_staged_cannot_be_deleted(
    elsewhere: CheckpointKeeper, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = mirror.filesystem.delete
    monkeypatch.setattr(
        mirror.filesystem, "delete", lambda name: refuse() if name.startswith(".staging") else delete(name)
    )
    elsewhere.commit(uploaded(elsewhere, tmp_path), {}, 1, {}).check()
    assert elsewhere.newest is not None
    assert mirror.checkpoint_numbers() == [0]
    elsewhere.target.prepare(None)  # another attempt can start
    elsewhere.close()


def test_an_interrupted_driver_does_not_wait_for_a_commit_in_a_store_that_hangs(
    elsewhere: CheckpointKeeper, journal: Journal, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    copy = mirror.filesystem.copy

    def hang(source: str, name: str) -> None:
        begun.set()
        go_on.wait()
        copy(source, name)

    monkeypatch.setattr(mirror.filesystem, "copy", hang)
    commit = elsewhere.commit(uploaded(elsewhere, tmp_path), {}, 1, {})
    begun.wait()

    def leave() -> None:
        elsewhere.settle(store_wait_s=0.1)
        elsewhere.close(complete=False)

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    leaving.join(60)
    waited_for_ever = leaving.is_alive()
    go_on.set()
    assert not waited_for_ever
    assert elsewhere.newest is None
    (warning,) = elsewhere.warnings
    assert re.search(r"checkpoint_000000 was not committed.*memory://.* did not answer", warning)
    with pytest.raises(StorageError, match="checkpoint_000000 was given up"):
        commit.stored.result(60)
    assert mirror.checkpoint_numbers() == []  # what another driver may own by now is left alone


def test_an_upload_does_not_hold_up_the_exit_of_the_interpreter(run_dir: RunDir, journal: Journal) -> None:
    CheckpointKeeper(CheckpointConfig(), run_dir, journal).commit(stage(run_dir, 0), {}, 1, {}).check()
    script = (
        "import sys, threading; from pathlib import Path\n"
        "from paceline.air.background_pool import BackgroundPool\n"
        "from paceline.storage.filesystem import FsspecFilesystem\n"
        "from paceline.storage.mirror import Mirror\n"
        "from paceline.storage.run_dir import RunDir\n"
        "filesystem, begun = FsspecFilesystem('memory://place'), threading.Event()\n"
        "def stuck(*_): begun.set(); threading.Event().wait()\n"
        "filesystem.upload = stuck\n"
        "mirror = Mirror(filesystem, RunDir(Path(sys.argv[1])))\n"
        "BackgroundPool('upload').submit(lambda: mirror.push_checkpoint(0)); begun.wait()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(run_dir.root)], check=True, timeout=60)
