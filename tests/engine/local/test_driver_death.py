"""Drivers that really die: nothing of theirs may be left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from paceline.testing.processes import Driver, Marks, Process, descendants, process, wait_for


def start(name: str, folder: Path) -> Driver:
    return Driver(["-m", "tests.engine.local.drivers", name, str(folder)], output=folder / "output")


def everybody(driver: Driver, marks: Marks) -> list[Process]:
    """Every process below the driver, and those that said who they are."""
    said = [process(pid) for mark in marks.read("family") for pid in json.loads(mark["pids"])]
    found = {*descendants(driver.pid), *(member for member in said if member is not None)}
    assert len(found) >= 11, "a warden and two workers with four processes each"
    return list(found)


def assert_gone(family: list[Process]) -> None:
    wait_for(lambda: not any(member.alive for member in family), "the end of every process")


REPEATED = [pytest.param(signal.SIGKILL, marks=pytest.mark.slow, id=f"SIGKILL-{repeat}") for repeat in range(9)]
CRASHED = pytest.param(signal.SIGSEGV, marks=pytest.mark.slow, id="SIGSEGV")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, CRASHED, *REPEATED], ids=str)
def test_a_killed_driver_leaves_nothing(tmp_path: Path, number: int) -> None:
    marks = Marks(tmp_path / "marks")
    with start("wait", tmp_path) as driver:
        marks.wait("running")
        family = everybody(driver, marks)
        os.kill(driver.pid, number)
        assert_gone(family)


def test_a_forked_child_of_the_driver_does_not_keep_workers_alive(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    with start("in_a_thread_with_a_forked_child", tmp_path) as driver:
        marks.wait("running")
        (said,) = marks.wait("child")
        family = [member for member in everybody(driver, marks) if member.pid != said["pid"]]
        assert all(member.alive for member in family)
        os.kill(driver.pid, signal.SIGKILL)
        try:
            assert_gone(family)
        finally:
            os.kill(said["pid"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "code"), [("exit_in_the_middle", 7), ("end_without_shutdown", 0), ("raise_without_shutdown", 1)]
)
def test_a_driver_that_just_ends_leaves_nothing(tmp_path: Path, name: str, code: int) -> None:
    marks = Marks(tmp_path / "marks")
    with start(name, tmp_path) as driver:
        assert driver.wait() == code, driver.text()
        said = [process(pid) for mark in marks.read("family") for pid in json.loads(mark["pids"])]
        assert_gone([member for member in said if member is not None])


def test_a_driver_killed_while_the_warden_imports_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import time\nfrom paceline.testing.processes import Marks\n"
        f"Marks({str(tmp_path / 'marks')!r}).say('importing')\ntime.sleep(1000)\n"
    )
    code = (
        "import sys\nfrom paceline.engine.choose import choose_engine\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "choose_engine('local').warm(('slow_to_import',))\nsys.stdin.read()\nimport time; time.sleep(1000)\n"
    )
    marks = Marks(tmp_path / "marks")
    with Driver(["-c", code], output=tmp_path / "output") as driver:
        marks.wait("importing")
        family = descendants(driver.pid)
        assert family
        os.kill(driver.pid, signal.SIGKILL)
        assert_gone(family)
