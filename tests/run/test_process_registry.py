"""Which processes a run started, and which of them are still the same ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.run import process_registry


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def change(path: Path, **facts: object) -> None:
    """Rewrite the registry's only entry."""
    (line,) = path.read_text().splitlines()
    path.write_text(json.dumps({**json.loads(line), **facts}) + "\n")


def test_a_recorded_process_that_still_runs_is_found_and_ended(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "processes.jsonl"
    process_registry.record(path, 0, {0: sleeper.pid})
    assert process_registry.survivors(path) == [sleeper.pid]
    assert process_registry.end_survivors(path) == [sleeper.pid]
    assert sleeper.wait() == -9
    assert not path.exists()


@pytest.mark.parametrize("facts", [{"start": 1}, {"start": None}, {"boot": "another boot"}])
def test_a_pid_that_means_somebody_else_now_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], facts: dict[str, object]
) -> None:
    path = tmp_path / "processes.jsonl"
    process_registry.record(path, 0, {0: sleeper.pid})
    change(path, **facts)
    assert process_registry.end_survivors(path) == []
    assert sleeper.poll() is None


def test_processes_that_are_gone_are_no_survivors(tmp_path: Path) -> None:
    path = tmp_path / "processes.jsonl"
    process = subprocess.Popen([sys.executable, "-c", ""])
    process_registry.record(path, 0, {0: process.pid})
    process.wait()
    assert process_registry.survivors(path) == []
    assert process_registry.start_time(process.pid) is None


def test_a_process_that_nobody_has_waited_for_is_no_survivor(tmp_path: Path) -> None:
    path = tmp_path / "processes.jsonl"
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process_registry.record(path, 0, {0: process.pid})
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still in the process table
    assert process_registry.end_survivors(path) == []
    process.communicate()


def test_attempts_are_added_and_a_torn_last_line_is_passed_over(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "processes.jsonl"
    process_registry.record(path, 0, {0: 2**22 + 1})
    process_registry.record(path, 1, {0: sleeper.pid})
    with path.open("a") as file:
        file.write('{"rank": 1, "pid"')
    assert process_registry.survivors(path) == [sleeper.pid]


def test_without_a_registry_there_is_nothing_to_end(tmp_path: Path) -> None:
    assert process_registry.end_survivors(tmp_path / "processes.jsonl") == []


PARENT = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "-c", sys.argv[1], *sys.argv[2:]]))
"""
CHILD = """
import os, sys
from pathlib import Path
from paceline.run import process_registry
path = Path(sys.argv[1])
process_registry.record(path, 0, {0: os.getpid(), 1: os.getppid(), 2: int(sys.argv[2])})
print(process_registry.end_survivors(path))
"""


def test_a_process_never_ends_itself_or_an_ancestor(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    command = [sys.executable, "-c", PARENT, CHILD, str(tmp_path / "processes.jsonl"), str(sleeper.pid)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == f"[{sleeper.pid}]"
    assert sleeper.wait() == -9
