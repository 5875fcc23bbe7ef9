"""What drivers that were killed leave behind, and who is never touched when that is ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.engine.local import drivers
from paceline.engine.local.processes import DRIVER_VARIABLE
from paceline.testing.processes import Driver, Marks, Process, children, process, wait_for

pytestmark = pytest.mark.usefixtures("runtime_dir")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")

Start = Callable[..., Process]


@pytest.fixture
def sleeper() -> Iterator[Start]:
    """Starts processes that carry a driver's mark, or none; they end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(identity: str | None, prefix: tuple[str, ...] = ()) -> Process:
        marked = {} if identity is None else {DRIVER_VARIABLE: identity}
        started.append(subprocess.Popen([*prefix, "sleep", "1000"], env={**os.environ, **marked}))
        found = process(started[-1].pid)
        assert found is not None
        return found

    yield start
    for each in started:
        each.kill()
        each.wait()


def start_driver(folder: Path, name: str = "wait") -> Driver:
    return Driver(["-m", "tests.engine.local.drivers", name, str(folder)], output=folder / "output")


def family_of(folder: Path) -> list[Process]:
    """The workers and what they have started, as they said."""
    said = [process(pid) for mark in Marks(folder / "marks").read("family") for pid in json.loads(mark["pids"])]
    family = [member for member in said if member is not None]
    assert len(family) == 10, "two workers with four processes each"
    return family


def wardens_of(driver: Driver) -> list[Process]:
    return [child for child in children(driver.pid) if "engine/local/boot.py" in child.command]


def dead_driver() -> str:
    """The identity of a driver that was gone before it could remove its file."""
    code = (
        "import os\nfrom paceline.engine.local import drivers\nprint(*drivers.mark().values(), flush=True)\nos._exit(0)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def assert_gone(family: list[Process]) -> None:
    wait_for(lambda: not any(member.alive for member in family), "the end of every process")


def kill_together(driver: Driver, wardens: list[Process]) -> None:
    """As if at one moment: the driver cannot react to the end of the wardens, nor they to its end."""
    driver.send(signal.SIGSTOP)
    for warden in wardens:
        os.kill(warden.pid, signal.SIGKILL)
    wait_for(lambda: not any(warden.alive for warden in wardens), "the wardens' end")
    driver.kill()


FRESH = pytest.param("with_fresh_interpreters", marks=pytest.mark.slow)
FORKED = pytest.param("in_a_thread_with_a_forked_child", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["wait", FRESH])
def test_what_a_double_kill_left_is_swept(tmp_path: Path, runtime_dir: Path, name: str) -> None:
    with start_driver(tmp_path, name) as driver:
        Marks(tmp_path / "marks").wait("running")
        family = family_of(tmp_path)
        assert drivers.sweep() == 0, "the driver is alive"
        kill_together(driver, wardens_of(driver))
        workers, others = family[::5], [member for member in family if member not in family[::5]]
        assert_gone(workers)  # The system ends these with their warden.
        assert all(member.alive for member in others)
        assert drivers.sweep() == 8
        assert_gone(others)
        assert os.listdir(runtime_dir) == []
        assert drivers.sweep() == 0


@pytest.mark.parametrize("name", ["wait", FRESH, FORKED])
def test_workers_do_the_work_of_a_stopped_warden(tmp_path: Path, runtime_dir: Path, name: str) -> None:
    with start_driver(tmp_path, name) as driver:
        Marks(tmp_path / "marks").wait("running")
        family, wardens = family_of(tmp_path), wardens_of(driver)
        os.kill(wardens[0].pid, signal.SIGSTOP)
        driver.kill()
        assert_gone([*family, *wardens])
        assert_gone_from(runtime_dir)


def test_a_warden_does_the_work_of_a_stopped_one(tmp_path: Path, runtime_dir: Path) -> None:
    with start_driver(tmp_path, "with_two_wardens") as driver:
        Marks(tmp_path / "marks").wait("running")
        family, wardens = family_of(tmp_path), wardens_of(driver)
        busy, idle = sorted(wardens, key=lambda warden: not children(warden.pid))
        stop([busy, *family[::5]])
        assert idle.alive
        driver.kill()
        assert_gone([*family, *wardens])
        assert_gone_from(runtime_dir)


def stop(members: list[Process]) -> None:
    for member in members:
        os.kill(member.pid, signal.SIGSTOP)
    wait_for(lambda: all(member.state == "T" for member in members), "them to stop")


def assert_gone_from(folder: Path) -> None:
    wait_for(lambda: os.listdir(folder) == [], "the end of the driver's file")


def test_a_warden_that_stayed_stopped_is_swept(tmp_path: Path) -> None:
    """All workers were stopped with it, so that nobody could do its work."""
    with start_driver(tmp_path) as driver:
        Marks(tmp_path / "marks").wait("running")
        family, wardens = family_of(tmp_path), wardens_of(driver)
        stop([*wardens, *family[::5]])
        driver.kill()
        assert drivers.sweep() == 11
        assert_gone([*family, *wardens])


def test_a_process_without_environment_is_found_by_its_session(tmp_path: Path) -> None:
    with start_driver(tmp_path, "with_bare_children") as driver:
        (said,) = Marks(tmp_path / "marks").wait("running")
        bare = [found for pid in said["pids"] if (found := process(pid))]
        assert len(bare) == 2
        kill_together(driver, wardens_of(driver))
        drivers.sweep()
        assert_gone(bare)


def test_processes_of_a_live_driver_are_not_touched(tmp_path: Path, runtime_dir: Path) -> None:
    with start_driver(tmp_path) as driver:
        Marks(tmp_path / "marks").wait("running")
        family = family_of(tmp_path)
        assert drivers.sweep() == 0
        (file,) = runtime_dir.iterdir()
        copy = tmp_path / "copy"
        shutil.copy(file, copy)
        copy.rename(file)  # Nobody holds a lock on this one: but the driver it names is alive.
        assert drivers.sweep() == 0
        assert all(member.alive for member in family)
        assert driver.text() == ""


def test_a_marked_process_is_swept_and_others_are_not(sleeper: Start) -> None:
    identity = dead_driver()
    marked, unmarked, of_another = sleeper(identity), sleeper(None), sleeper(identity[:-1] + "x")
    assert drivers.sweep() == 1
    assert not marked.alive
    assert unmarked.alive
    assert of_another.alive


def test_a_file_that_names_an_innocent_process_does_it_no_harm(runtime_dir: Path, sleeper: Start) -> None:
    innocent = sleeper(None)
    (file,) = (runtime_dir / dead_driver(),)
    forged = file.with_name(f"{innocent.pid}-{innocent.start}-00000000")
    shutil.copy(file, forged)
    head, _, _ = file.read_text().partition("\n")
    file.write_text(f'{head}\n[["run", "/dir"]]\n{{"pid": {innocent.pid}, "start": {innocent.start}}}\n')
    assert drivers.sweep() == 0
    assert innocent.alive


@needs_root
def test_a_process_of_another_user_is_not_touched(sleeper: Start) -> None:
    identity = dead_driver()
    stranger = sleeper(identity, ("setpriv", "--reuid=65534", "--clear-groups"))
    wait_for(lambda: os.stat(f"/proc/{stranger.pid}").st_uid == 65534, "its change of user")
    wait_for(lambda: stranger.command.startswith("sleep"), "its program")
    assert drivers.sweep() == 0
    assert stranger.alive


@needs_root
def test_a_process_of_another_pid_namespace_is_not_touched(sleeper: Start) -> None:
    identity = dead_driver()
    outside = sleeper(identity, ("unshare", "--pid", "--fork"))
    (inside,) = wait_for(lambda: children(outside.pid), "the process inside")
    wait_for(lambda: inside.command.startswith("sleep"), "its program")
    try:
        assert drivers.sweep() == 1
        assert not outside.alive
        assert inside.alive
    finally:
        os.kill(inside.pid, signal.SIGKILL)


@needs_root
def test_a_file_of_another_user_counts_for_nothing(runtime_dir: Path, sleeper: Start) -> None:
    identity = dead_driver()
    os.chown(runtime_dir / identity, 65534, 65534)
    marked = sleeper(identity)
    assert drivers.sweep() == 0
    assert marked.alive


def test_a_driver_of_another_boot_has_left_nothing(runtime_dir: Path, sleeper: Start) -> None:
    identity = dead_driver()
    file = runtime_dir / identity
    file.write_text(json.dumps({**json.loads(file.read_text()), "boot_id": "another"}) + "\n")
    marked = sleeper(identity)
    assert drivers.sweep() == 0
    assert marked.alive
    assert not file.exists()


def test_a_driver_of_another_pid_namespace_is_left_to_those_in_it(runtime_dir: Path, sleeper: Start) -> None:
    identity = dead_driver()
    file = runtime_dir / identity
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid_namespace": "pid:[1]"}) + "\n")
    marked = sleeper(identity)
    assert drivers.sweep() == 0
    assert marked.alive
    assert file.exists()


def test_a_sweep_spares_its_own_process_and_its_parents() -> None:
    identity = dead_driver()
    code = "from paceline.engine.local import drivers\nprint(drivers.sweep())"
    command = [
        sys.executable,
        "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)",
    ]
    swept = subprocess.run(
        command, env={**os.environ, DRIVER_VARIABLE: identity}, capture_output=True, text=True, check=True
    )
    assert swept.stdout.strip() == "0"
    assert not any(driver.identity == identity for driver in drivers.live_drivers())
