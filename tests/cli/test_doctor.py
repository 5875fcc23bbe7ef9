"""``paceline doctor`` on this machine, on one with less, and beside what a killed driver left behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.cli.doctor_packages import satisfies
from paceline.cli.main import main

DRIVER = """
import os, subprocess, sys
from paceline.engine.local import drivers
child = subprocess.Popen(["sleep", "600"], env={**os.environ, **drivers.mark()}, start_new_session=True,
    stdout=subprocess.DEVNULL)
drivers.enter_run("run", "/nowhere/run")
print(child.pid, flush=True)
sys.stdin.read()
"""


def findings(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code = main(["doctor", "--json", *options])
    return code, {row["check"]: row for row in json.loads(capsys.readouterr().out)}


def test_it_looks_at_everything_and_changes_nothing(capsys: pytest.CaptureFixture[str], results_dir: Path) -> None:
    code, found = findings(capsys)
    assert code == 0
    checks = {"cores", "memory", "/dev/shm", "limit of open files", "clock", "loopback", "GPUs", "results directory"}
    assert checks | {"live drivers", "killed drivers", "paceline", "torch", "ray", "engine"} <= found.keys()
    assert not results_dir.exists()


def test_the_report_says_what_json_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "Machine" in said
    assert "results directory" in said
    assert main(["doctor", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("part,check,level,finding,advice\n")


def test_a_results_directory_that_cannot_be_written_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "file" / "results"))
    code, found = findings(capsys)
    assert (code, found["results directory"]["level"]) == (1, "problem")


def test_an_engine_that_is_not_there_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_ENGINE", "inline")
    assert "inline" in findings(capsys)[1]["engine"]["finding"]


def test_low_limits_are_warnings() -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    command = [sys.executable, "-m", "paceline.cli.main", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, preexec_fn=lower)
    found = {row["check"]: row for row in json.loads(done.stdout)}
    assert found["limit of open files"]["level"] == "warning"
    assert "ulimit" in found["limit of open files"]["advice"]


def test_what_a_killed_driver_left_is_found_and_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    left = psutil.Process(int(driver.stdout.readline()))
    assert f"process {driver.pid}" in findings(capsys)[1]["live drivers"]["finding"]
    driver.send_signal(signal.SIGKILL)
    driver.communicate()

    code, found = findings(capsys)
    assert (code, found["killed drivers"]["level"]) == (0, "warning")
    assert "1 process " in found["killed drivers"]["finding"]
    assert left.is_running(), "looking ends nothing"

    code, found = findings(capsys, "--fix")
    assert code == 0
    assert "1 process " in found["swept"]["finding"]
    assert found["killed drivers"]["level"] == "ok"
    psutil.wait_procs([left], timeout=10)
    assert not os.path.exists(f"/proc/{left.pid}") or left.status() == psutil.STATUS_ZOMBIE


def test_versions_are_compared_by_their_numbers() -> None:
    assert satisfies("2.13.0+cpu", ">=2.6")
    assert not satisfies("2.5.9", ">=2.6")
    assert satisfies("2.60.1", "<2.61,>=2.60")
    assert not satisfies("2.61.0", "<2.61,>=2.60")
    assert satisfies("1.2.2", "==1.2.2")
    assert not satisfies("1.2", "==1.2.2")
    assert satisfies("3.0", "!=3.1")
    assert satisfies("1.0", "")
