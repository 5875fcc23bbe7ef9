"""Exactly one driver per trial directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.air.errors import RunLockedError, StorageError
from paceline.storage.lock import RunLock, is_held

HOLDER = (
    "import sys; from pathlib import Path\n"
    "from paceline.storage.lock import RunLock\n"
    "RunLock(Path(sys.argv[1])).acquire(); print('locked', flush=True); sys.stdin.read()\n"
)


@contextmanager
def another_driver(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_and_told_who_holds_the_lock(tmp_path: Path) -> None:
    with another_driver(tmp_path / "lock") as holder, pytest.raises(RunLockedError) as refused:
        RunLock(tmp_path / "lock").acquire()
    for fact in (f"pid {holder.pid} ", f"host {socket.gethostname()}", "since 20"):
        assert fact in str(refused.value)
    assert isinstance(refused.value, StorageError)


def test_the_lock_of_a_killed_driver_is_taken_over(tmp_path: Path) -> None:
    with another_driver(tmp_path / "lock") as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with RunLock(tmp_path / "lock"):
            assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_lock_file_of_another_boot_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(json.dumps({"pid": 1, "host": "x", "boot_id": "old", "since": "1999"}))
    with RunLock(tmp_path / "lock"):
        pass


def test_a_second_driver_in_the_same_process_is_refused_and_does_not_drop_the_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with RunLock(tmp_path / "lock"):
        for path in (tmp_path / "lock", tmp_path / "link" / "lock"):
            with pytest.raises(RunLockedError, match=f"pid {os.getpid()}"):
                RunLock(path).acquire()
        done = subprocess.run(
            [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], capture_output=True, text=True, input=""
        )
        assert "RunLockedError" in done.stderr


def test_released_means_free(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "lock")
    lock.acquire()
    lock.release()
    lock.release()
    lock.acquire()
    lock.release()
    with another_driver(tmp_path / "lock"):
        pass


def test_a_forked_child_neither_holds_nor_frees_the_lock(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "lock")
    lock.acquire()
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    done = subprocess.run(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], capture_output=True, text=True, input=""
    )
    assert "RunLockedError" in done.stderr
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    lock.release()


def test_reading_or_copying_the_lock_file_does_not_drop_the_lock(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    with RunLock(tmp_path / "trial" / "lock"):
        shutil.copytree(tmp_path / "trial", tmp_path / "copy")
        done = subprocess.run(
            [sys.executable, "-c", HOLDER, str(tmp_path / "trial" / "lock")], capture_output=True, text=True, input=""
        )
        assert "RunLockedError" in done.stderr


def test_a_forked_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The driver dies, or gives the lock back, while a child that it forked is still there."""
    script = (
        "import os, sys; from pathlib import Path\n"
        "from paceline.storage.lock import RunLock\n"
        "RunLock(Path(sys.argv[1])).acquire()\n"
        "if os.fork() == 0: print('forked', flush=True); sys.stdin.read(); os._exit(0)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "lock")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "forked\n"
        assert driver.wait() == -signal.SIGKILL
        with RunLock(tmp_path / "lock"):
            pass


def test_a_missing_directory_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="gone/lock"):
        RunLock(tmp_path / "gone" / "lock").acquire()


def test_asking_whether_somebody_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    assert not path.exists(), "asking made a file"
    with RunLock(path):
        assert is_held(path)
        code = f"from paceline.storage.lock import Path, is_held; print(is_held(Path({str(path)!r})))"
        assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).stdout == "True\n"
        with pytest.raises(RunLockedError):
            RunLock(path).acquire()
    assert not is_held(path)


def test_the_lock_of_a_process_that_was_killed_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import os, signal; from pathlib import Path; from paceline.storage.lock import RunLock\n"
        f"RunLock(Path({str(path)!r})).acquire(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert path.read_text(), "it could not clean up"
    assert not is_held(path)
