"""What is not a checkpoint or is damaged is refused, and nothing but to_dict unpickles."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    SerializationError,
)
from tests.air.checkpoint_forms import memory_file

# Places that are not checkpoints


def test_a_missing_directory_is_told_at_once(tmp_path: Path) -> None:
    for make in (Checkpoint, Checkpoint.from_directory):
        with pytest.raises(CheckpointNotFoundError, match="nowhere"):
            make(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        Checkpoint.from_uri(f"file://{tmp_path}/nowhere")


def test_a_directory_that_vanishes_is_told_on_use(tmp_path: Path) -> None:
    (tmp_path / "soon gone").mkdir()
    checkpoint = Checkpoint(tmp_path / "soon gone")
    (tmp_path / "soon gone").rmdir()
    for use in (checkpoint.to_dict, checkpoint.to_bytes, checkpoint.to_directory, checkpoint.get_metadata):
        with pytest.raises(CheckpointNotFoundError):
            use()
    with pytest.raises(CheckpointNotFoundError), checkpoint.as_directory():
        pass
    assert pickle.loads(pickle.dumps(checkpoint)) == checkpoint


def test_a_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="not a directory"):
        Checkpoint(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="not a directory"):
        Checkpoint.from_dict({}).to_directory(tmp_path / "model.pt")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody who may not read")
def test_an_unreadable_directory_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    tmp_path.chmod(0o700)
    code = (
        "import os, sys; from paceline.air.checkpoint import Checkpoint\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "Checkpoint(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "mine")], capture_output=True, text=True, check=False
    )
    assert "CheckpointError" in done.stderr
    assert "user 65534" in done.stderr


def test_a_missing_remote_directory(memory_uri: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="memory://"):
        Checkpoint.from_uri(memory_uri).to_dict()
    with pytest.raises(CheckpointError, match="nosuch://place"):
        Checkpoint.from_uri("nosuch://place").to_dict()


# Trust


class Canary:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_nothing_but_to_dict_unpickles(tmp_path: Path, memory_uri: str) -> None:
    mark = tmp_path / "unpickled"
    path = Checkpoint.from_dict({"x": Canary(mark)}).to_directory(tmp_path / "checkpoint")
    checkpoint = Checkpoint.from_directory(path)
    packed = Checkpoint.from_bytes(checkpoint.to_bytes())
    remote = Checkpoint.from_uri(checkpoint.to_uri(memory_uri))
    in_memory = memory_file(checkpoint)
    for each in (checkpoint, packed, remote, in_memory):
        each.get_metadata()
        each.set_metadata({"a": 1})
        each.get_preprocessor()
        _ = each.number, each.iteration, each.path, each.uri, repr(each), hash(each)
        pickle.loads(pickle.dumps(each))
        each.to_directory(tmp_path / "copy")
        each.to_bytes()
        with each.as_directory():
            pass
    Checkpoint(path).get_internal_representation()
    assert not mark.exists()
    checkpoint.to_dict()
    assert mark.exists()


def test_a_file_cannot_make_a_module_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".metadata.json").write_text('{"paceline": 1, "class": "evil_module.Checkpoint"}')
    assert type(Checkpoint.from_directory(tmp_path / "c")) is Checkpoint


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"paceline": 1, "class": 3}', '{"paceline": 1, "user": []}', '{"paceline": 1, "report": 2}']
)
def test_damaged_metadata_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / ".metadata.json").write_text(content)
    with pytest.raises(CheckpointCorruptError, match="metadata"):
        Checkpoint.from_directory(tmp_path)


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps([1]), b"cno_such_module\nname\n."])
def test_a_damaged_pickle_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "dict_checkpoint.pkl").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"dict_checkpoint\.pkl"):
        Checkpoint.from_directory(tmp_path).to_dict()


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file, pytest.raises(SerializationError, match="'log'"):
        Checkpoint.from_dict({"fine": 1, "log": file}).to_bytes()
