"""The files by which drivers can be found."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.engine.local import drivers
from paceline.testing.processes import process

pytestmark = pytest.mark.usefixtures("runtime_dir")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that drives two runs, then one, then ends, each at a line of input."""
    code = (
        "from paceline.engine.local import drivers\n"
        "assert drivers.enter_run('a', '/runs/a') == drivers.enter_run('b', '/runs/b') == ''\n"
        "print(*drivers.mark().values(), flush=True); input()\n"
        "drivers.leave_run('/runs/a'); print(flush=True); input()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        yield driver
        driver.kill()


def test_a_driver_is_found_with_its_runs_while_it_lives(other: subprocess.Popen[str], runtime_dir: Path) -> None:
    assert other.stdin is not None
    assert other.stdout is not None
    identity = other.stdout.readline().strip()
    (found,) = drivers.live_drivers()
    assert (found.identity, found.pid) == (identity, other.pid)
    assert found.is_here
    assert found.runs == (("a", "/runs/a"), ("b", "/runs/b"))
    assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((runtime_dir / identity).stat().st_mode) == 0o600
    print(file=other.stdin, flush=True)
    other.stdout.readline()
    assert drivers.live_drivers()[0].runs == (("b", "/runs/b"),)
    assert list(drivers.dead_drivers()) == []
    print(file=other.stdin, flush=True)
    assert other.wait() == 0
    assert drivers.live_drivers() == []
    assert os.listdir(runtime_dir) == [], "a driver that ends removes its file"


def test_a_killed_driver_is_dead_and_its_file_tells_which_runs_it_had(other: subprocess.Popen[str]) -> None:
    assert other.stdout is not None
    identity = other.stdout.readline().strip()
    assert drivers.is_running(identity)
    other.kill()
    other.wait()
    assert not drivers.is_running(identity)
    assert drivers.live_drivers() == []
    (dead,) = drivers.dead_drivers()
    assert dead.identity == identity
    assert dead.runs == (("a", "/runs/a"), ("b", "/runs/b"))


def test_processes_of_other_drivers_do_not_claim_this_one(other: subprocess.Popen[str]) -> None:
    """Several drivers may die at once; the processes of each look for theirs."""
    assert other.stdout is not None
    identity = other.stdout.readline().strip()
    other.kill()
    other.wait()
    assert list(drivers.dead_drivers(only="1-1-00000000")) == []
    looking_at_all = drivers.dead_drivers()
    assert next(looking_at_all).identity == identity
    first = drivers.dead_drivers(only=identity)
    assert next(first).identity == identity
    assert list(drivers.dead_drivers(only=identity)) == [], "one of its own processes has it already"


def test_a_file_system_without_locks_is_no_reason_not_to_run(runtime_dir: Path) -> None:
    code = (
        "from paceline.engine.local import drivers\n"
        "drivers.fcntl.F_OFD_SETLK = drivers.fcntl.F_OFD_GETLK = 9999\n"  # the system answers EINVAL
        "print(drivers.enter_run('a', '/runs/a'))\n"
        "open(drivers.runtime_dir() + '/1-1-00000000', 'w').write('a file of somebody who could lock it')\n"
        "assert drivers.sweep() == 0\n"
        "assert drivers.live_drivers() == []\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Invalid argument" in done.stdout
    assert os.listdir(runtime_dir) == ["1-1-00000000"]


def test_a_forked_child_is_another_driver(runtime_dir: Path) -> None:
    code = (
        "import os\nfrom paceline.engine.local import drivers\n"
        "drivers.enter_run('a', '/runs/a')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    import sys; sys.exit(drivers.live_drivers() == [])\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "(own,) = drivers.live_drivers()\n"
        "assert own.runs == (('a', '/runs/a'),)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert os.listdir(runtime_dir) == []


def test_a_pid_that_means_another_process_now_is_not_the_driver() -> None:
    own = process(os.getpid())
    assert own is not None
    assert drivers.is_running(f"{own.pid}-{own.start}-00000000")
    assert not drivers.is_running(f"{own.pid}-{own.start + 1}-00000000")
    assert not drivers.is_running("nonsense")


def said_when_refused() -> str:
    code = (
        "from paceline.engine.local import drivers\n"
        "assert drivers.sweep() == 0\nprint(drivers.enter_run('a', '/runs/a'))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("how", ["mode", "owner", "link", "file"])
def test_a_directory_that_others_could_write_is_not_used(runtime_dir: Path, tmp_path: Path, how: str) -> None:
    if how == "owner" and os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if how == "link":
        runtime_dir.symlink_to(elsewhere)
    elif how == "file":
        runtime_dir.write_text("")
    else:
        runtime_dir.mkdir(mode=0o700)
        if how == "mode":
            runtime_dir.chmod(0o770)
        else:
            os.chown(runtime_dir, 65534, 65534)
    said = said_when_refused()
    assert str(runtime_dir) in said
    assert "XDG_RUNTIME_DIR" in said
    assert list(elsewhere.iterdir()) == []


def test_a_runtime_directory_of_somebody_else_is_passed_over(
    runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("", "relative", str(tmp_path / "missing")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        assert drivers.runtime_dir() == f"/tmp/paceline-{os.geteuid()}"
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared))
    assert drivers.runtime_dir() == f"/tmp/paceline-{os.geteuid()}"
