"""A run on remote storage and its local twin, which another driver may have left behind."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from paceline.air import CheckpointConfig
from paceline.air.errors import RestoreError
from paceline.engine.inline import InlineEngine
from paceline.run import run_files
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.records import CheckpointCommitted, Row
from paceline.storage.commit import Stager, commit
from paceline.storage.journal import Journal, read
from paceline.storage.lease import Lease
from paceline.storage.run_dir import RunDir
from tests.run.run_specs import spec


@pytest.fixture
def memory_uri() -> Iterator[str]:
    import fsspec

    name = uuid.uuid4().hex
    yield f"memory://{name}"
    store = fsspec.filesystem("memory")
    if store.exists(name):
        store.rm(name, recursive=True)


def row(index: int) -> Row:
    return Row(attempt=0, index=index, rank=0, stamp=0.0, elapsed=0.0, metrics={})


def add_row(files: run_files.RunFiles, index: int) -> None:
    files.journal.append(row(index))


def indices(journal: Path) -> list[int]:
    return [record["index"] for record in read(journal) if record["kind"] == "row"]


@pytest.fixture
def remote_run(memory_uri: str) -> tuple[str, Path]:
    """(URI, local directory) of a run with one row."""
    files = run_files.create(spec(name="experiment", storage_path=memory_uri), InlineEngine.capabilities)
    add_row(files, 1)
    assert files.close() == []
    return f"{memory_uri}/experiment/{files.run_dir.root.name}", files.run_dir.root


def continue_elsewhere(uri: str, place: Path, *rows: int) -> None:
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("PACELINE_RESULTS_DIR", str(place))
        files = run_files.reopen(spec(restore=uri))
        for index in rows:
            add_row(files, index)
        assert files.close() == []


def test_a_stale_twin_catches_up(remote_run: tuple[str, Path], tmp_path: Path) -> None:
    uri, local = remote_run
    continue_elsewhere(uri, tmp_path / "elsewhere", 2, 3)
    assert indices(local / "journal.jsonl") == [1]
    files = run_files.reopen(spec(restore=uri))
    assert files.last_row == 3
    add_row(files, 4)
    files.close()
    continue_elsewhere(uri, tmp_path / "third", 5)
    assert indices(*(tmp_path / "third").glob("*/*/journal.jsonl")) == [1, 2, 3, 4, 5]


def test_a_twin_that_is_ahead_is_kept(remote_run: tuple[str, Path], tmp_path: Path) -> None:
    uri, local = remote_run
    journal = Journal(local / "journal.jsonl")
    journal.append(row(2))
    journal.close()
    with open(local / "journal.jsonl", "ab") as file:
        file.write(b"torn")
    files = run_files.reopen(spec(restore=uri))
    assert files.last_row == 2
    files.close()
    continue_elsewhere(uri, tmp_path / "elsewhere")
    assert indices(*(tmp_path / "elsewhere").glob("*/*/journal.jsonl")) == [1, 2]


def test_histories_that_differ_are_not_mixed(remote_run: tuple[str, Path], tmp_path: Path) -> None:
    uri, local = remote_run
    continue_elsewhere(uri, tmp_path / "elsewhere", 2)
    journal = Journal(local / "journal.jsonl")
    journal.append(row(7))
    journal.close()
    with pytest.raises(RestoreError, match=f"delete.*{local}"):
        run_files.reopen(spec(restore=uri))
    continue_elsewhere(uri, tmp_path / "elsewhere", 3)  # the locks were released
    assert indices(local / "journal.jsonl") == [1, 7]


def test_a_checkpoint_of_the_other_driver_replaces_an_unrecorded_one_of_the_same_number(
    remote_run: tuple[str, Path], tmp_path: Path
) -> None:
    uri, local = remote_run
    make_checkpoint(RunDir(local), "mine")  # and then this driver died
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "elsewhere"))
        files = run_files.reopen(spec(restore=uri))
        make_checkpoint(files.run_dir, "theirs")
        files.journal.append(CheckpointCommitted(number=0, iteration=2))
        assert files.mirror is not None
        files.mirror.push_checkpoint(0)
        files.close()
    files = run_files.reopen(spec(restore=uri))
    keeper = CheckpointKeeper(CheckpointConfig(), files.run_dir, files.journal, files.mirror)
    assert files.records is not None
    keeper.load(files.records)
    assert keeper.newest_valid() is not None
    assert (local / "checkpoint_000000" / "model").read_text() == "theirs"
    files.close()


def make_checkpoint(run_dir: RunDir, content: str) -> None:
    with Stager(run_dir.staging(0, 0)) as stager:
        with stager.open("model") as file:
            file.write(content.encode())
        stager.finish({"number": 0, "iteration": 2})
    commit(stager.directory, run_dir.checkpoint(0))


@pytest.fixture
def mirrored(results_dir: Path) -> Iterator[run_files.RunFiles]:
    store, root = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    yield run_files.create(spec(storage_path=f"memory:/{root}"), InlineEngine.capabilities)
    store.rm(root, recursive=True)


def test_a_store_that_does_not_answer_is_not_waited_for_after_an_interrupt(
    mirrored: run_files.RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mirrored.mirror is not None
    over = threading.Event()
    monkeypatch.setattr(mirrored.mirror, "push_state", lambda **_: over.wait(60))
    (warning,) = mirrored.close(store_wait_s=0.01)
    over.set()
    assert mirrored.mirror.filesystem.label in warning
    assert str(mirrored.run_dir.root) in warning
    run_files.reopen(spec(restore=mirrored.mirror.filesystem.label)).close()


def test_a_store_that_is_known_to_be_out_of_reach_is_not_asked_at_the_end(
    mirrored: run_files.RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mirrored.mirror is not None
    asked: list[str] = []
    monkeypatch.setattr(mirrored.mirror, "push_state", lambda **_: asked.append("push"))
    monkeypatch.setattr(Lease, "failing", "the network is down")
    (warning,) = mirrored.close()
    assert asked == []
    assert "the network is down" in warning
    assert str(mirrored.run_dir.root) in warning
