"""Faults fire where they are configured, and nowhere else."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.air import faults
from paceline.air.faults import FAULT_VARIABLE, NOTES_VARIABLE, fault_point, watched_point


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_passed", {})
    monkeypatch.setattr(faults, "_noted", set())
    monkeypatch.setattr(faults, "role", {"rank": "driver", "attempt": "0"})


def configure(monkeypatch: pytest.MonkeyPatch, *specs: str) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, ";".join(specs))


def fires(name: str, **facts: object) -> bool:
    try:
        fault_point(name, **facts)
    except RuntimeError:
        return True
    return False


def test_nothing_is_watched_when_nothing_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FAULT_VARIABLE, raising=False)
    assert watched_point("report") is None
    configure(monkeypatch, "elsewhere:raise=RuntimeError")
    assert watched_point("report") is None
    configure(monkeypatch, "elsewhere:raise=RuntimeError", "report:raise=RuntimeError")
    assert watched_point("report") is not None


def test_conditions_are_compared_with_the_process_and_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "report:rank=1:attempt=0:step=7:raise=RuntimeError")
    assert not fires("report", step=7)
    faults.role["rank"] = "1"
    assert not fires("report", step=6)
    assert not fires("other", step=7)
    assert fires("report", step=7)
    assert not fires("report", step=7), "a fault fires once in a process"


def test_a_range_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "report:first=2:last=3:times=every:raise=RuntimeError")
    assert [fires("report", step=step) for step in range(1, 6)] == [False, True, True, False, False]


def test_the_step_of_a_report_holds_for_what_is_done_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "report:step=9:sleep=0", "stage_write:step=2:raise=RuntimeError")
    fault_point("report", step=1)
    assert not fires("stage_write")
    fault_point("report", step=2)
    assert fires("stage_write")


def test_a_limit_holds_over_all_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each process passes the point twice; two of the three find that it has fired often enough."""
    code = (
        "from paceline.air.faults import fault_point\nfor _ in range(2):\n    fault_point('here')\nprint('untouched')"
    )
    variables = {FAULT_VARIABLE: "here:id=one:limit=1:exit=3", NOTES_VARIABLE: str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, check=False, capture_output=True)
        for _ in range(3)
    ]
    assert sorted(run.returncode for run in runs) == [0, 0, 3]
    (note,) = tmp_path.iterdir()
    assert json.loads(note.read_text())["rank"] == "driver"


def test_without_a_place_for_notes_a_fault_fires_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configure(monkeypatch, "here:id=one:limit=1:raise=RuntimeError")
    monkeypatch.setenv(NOTES_VARIABLE, str(tmp_path / "on another machine"))
    assert fires("here")


@pytest.mark.parametrize(
    ("action", "status"),
    [("SIGKILL", -signal.SIGKILL), ("SIGTERM", -signal.SIGTERM), ("exit=5", 5), ("raise=ValueError", 1)],
)
def test_a_process_ends_as_it_was_told(action: str, status: int) -> None:
    code = "from paceline.air.faults import fault_point; fault_point('here')"
    environment = {**os.environ, FAULT_VARIABLE: f"here:{action}"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True)
    assert ended.returncode == status


def test_the_process_of_the_test_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, f"here:spare={os.getpid()}:SIGKILL")
    with pytest.raises(RuntimeError, match="inline"):
        fault_point("here")


def test_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "here:errno=ENOSPC")
    with pytest.raises(OSError, match="injected") as caught:
        fault_point("here")
    assert caught.value.errno == errno.ENOSPC


def test_a_pace_depends_on_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    configure(monkeypatch, "here:times=every:pace=1000")
    fault_point("here", size=500)
    fault_point("here", size=2000)
    assert slept == [0.5, 2.0]


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "delete"])
def test_one_file_is_damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    (tmp_path / "nested").mkdir()
    for name in ("a.txt", "nested/weights.bin"):
        (tmp_path / name).write_bytes(b"content")
    configure(monkeypatch, f"here:file=nested/*:damage={how}")
    fault_point("here", path=tmp_path)
    assert (tmp_path / "a.txt").read_bytes() == b"content"
    damaged = tmp_path / "nested" / "weights.bin"
    assert not damaged.exists() if how == "delete" else damaged.read_bytes() != b"content"


def test_nothing_to_damage_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configure(monkeypatch, "here:file=*.pt:damage=flip")
    with pytest.raises(RuntimeError, match=r"\*\.pt"):
        fault_point("here", path=tmp_path)
