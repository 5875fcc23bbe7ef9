"""Agents and workers whose driver is gone, or stands still."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from paceline.testing.processes import Driver, Marks, Process, process, wait_for
from tests.engine.remote.drivers import HEARTBEAT_S


def start(name: str, folder: Path) -> Driver:
    return Driver(["-m", "tests.engine.remote.drivers", name, str(folder)], output=folder / "output")


def everybody(marks: Marks) -> list[Process]:
    """Two agents, and two workers with four processes each."""
    found = [process(pid) for mark in marks.read("family") for pid in json.loads(mark["pids"])]
    assert len(found) == 12
    return [member for member in found if member is not None]


@pytest.mark.parametrize("name", ["wait", "with_a_forked_child"])
def test_a_killed_driver_leaves_nothing(tmp_path: Path, name: str) -> None:
    """At once, not when its silence is noticed; also if a child of the driver has inherited its connections."""
    marks = Marks(tmp_path / "marks")
    with start(name, tmp_path) as driver:
        (said,) = marks.wait("running")
        family = everybody(marks)
        assert all(member.alive for member in family)
        os.kill(driver.pid, signal.SIGKILL)
        try:
            killed_at = time.monotonic()
            wait_for(lambda: not any(member.alive for member in family), "the end of every process")
            assert time.monotonic() - killed_at < 1.5 * HEARTBEAT_S, "nobody needed to notice silence"
        finally:
            if "child" in said:
                os.kill(said["child"], signal.SIGKILL)


def test_a_driver_that_was_stopped_for_long_blames_nobody(tmp_path: Path) -> None:
    """As by Ctrl-Z: for much longer than heartbeat_timeout_s, and than agents wait for a machine that is gone."""
    marks = Marks(tmp_path / "marks")
    with start("poll_and_answer", tmp_path) as driver:
        marks.wait("running")
        family = everybody(marks)
        os.kill(driver.pid, signal.SIGSTOP)
        time.sleep(4.25 * HEARTBEAT_S)  # What this is about; each agent has knocked twice by then.
        assert all(member.alive for member in family)
        os.kill(driver.pid, signal.SIGCONT)
        marks.open_gate("go")
        assert driver.wait() == 0, driver.text()
        assert [mark["text"].partition("(")[0] for mark in marks.read("event")] == ["TaskEnded"] * 2
        wait_for(lambda: not any(member.alive for member in family), "the end of every process")
