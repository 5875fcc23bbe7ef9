"""Temporary directories of killed processes are removed, those in use never."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.air.checkpoint import Checkpoint
from paceline.air.temporary import temporary_directory

HOLDING = """
import sys
from paceline.air.checkpoint import Checkpoint
with Checkpoint.from_bytes(Checkpoint.from_dict({"a": 1}).to_bytes()).as_directory() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, in this process and in others."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def holding_process() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(place: Path) -> None:
    killed, left = holding_process()
    alive, in_use = holding_process()
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (left / "dict_checkpoint.pkl").exists()
        stopped = in_use  # a stopped process is not a dead one
        alive.send_signal(signal.SIGSTOP)
        with temporary_directory() as own:
            assert not left.exists()
            assert (stopped / "dict_checkpoint.pkl").exists()
            assert own.exists()
        alive.send_signal(signal.SIGCONT)
        alive.communicate(timeout=60)
        assert alive.returncode == 0
    finally:
        alive.kill()
        for process in (killed, alive):
            process.communicate()
    assert list(place.iterdir()) == []


def test_a_child_that_still_uses_it_keeps_it(place: Path) -> None:
    """A forked child holds the descriptor of its parent."""
    reading, writing = os.pipe()
    with temporary_directory() as folder:
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        with temporary_directory():
            assert folder.exists()
    os.close(writing)
    os.close(reading)
    os.waitpid(child, 0)


def test_names_of_others_are_left_alone(place: Path) -> None:
    others = ["paceline-checkpoint-abcdefgh", "paceline-checkpoint-in-use-0123456789abcdef-abcdefgh", "other"]
    for name in others:
        (place / name).mkdir()
    with temporary_directory():
        pass
    assert sorted(path.name for path in place.iterdir()) == sorted(others)


def test_what_to_directory_gives_belongs_to_the_caller(place: Path) -> None:
    script = "from paceline.air.checkpoint import Checkpoint; print(Checkpoint.from_dict({'a': 1}).to_directory())"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    with temporary_directory():
        pass
    assert Checkpoint.from_directory(run.stdout.strip()).to_dict() == {"a": 1}
    assert [path.name for path in place.iterdir()] == [Path(run.stdout.strip()).name]


def test_nothing_is_left_when_it_fails(place: Path) -> None:
    class Unpicklable:
        def __reduce__(self) -> str:
            raise ValueError("never")

    with pytest.raises(TypeError):
        Checkpoint.from_dict({"a": Unpicklable()}).to_directory()
    assert list(place.iterdir()) == []
