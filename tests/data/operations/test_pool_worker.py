"""The processes of a script: they do not run it again, and they end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

GUARD_S = 60.0
"""Against hanging only; nothing takes that long."""


def wait_until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + GUARD_S
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.01)


SCRIPT = """
    import os, sys, time
    import numpy as np, pyarrow as pa
    from paceline.data.block import ReadRequest
    from paceline.data.dataset_transforms import Transforms
    from paceline.data.sources.computed import TableSource

    print("script", flush=True)
    FACTOR = 3

    def helper(values):
        return values * FACTOR

    def triple(batch):
        if len(sys.argv) > 1 and batch["a"][0] > 0:
            time.sleep(600)
        return {"x": helper(batch["a"]), "pid": np.full(len(batch["a"]), os.getpid())}

    ds = Transforms(TableSource(pa.table({"a": range(20)}), 20)).map_batches(triple, batch_size=10, concurrency=2)
    for chunk in ds.plan.read(0, ReadRequest()):
        print(*set(chunk.column("pid").to_pylist()), chunk.column("x").to_pylist()[-1], flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def test_functions_of_a_script_work_and_the_script_runs_once(script: Path) -> None:
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert done.returncode == 0, done.stderr
    first, *results = done.stdout.splitlines()
    assert first == "script"
    assert [line.split()[1] for line in results] == ["27", "57"]
    wait_until_gone({int(line.split()[0]) for line in results})
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_their_parent_however_it_ends(script: Path, number: int) -> None:
    with subprocess.Popen([sys.executable, script, "sleep"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"script\n"
        pids = {int(parent.stdout.readline().split()[0])}
        pids |= {child.pid for child in psutil.Process(parent.pid).children(recursive=True)}
        parent.send_signal(number)
        parent.communicate(timeout=GUARD_S)
    assert len(pids) == 3  # the one that starts the others is among them
    wait_until_gone(pids)


def test_what_a_process_started_ends_too_after_its_parent_was_killed(script: Path) -> None:
    start = "print('child', subprocess.Popen(['sleep', '1000'], start_new_session=True).pid, flush=True)"
    source = script.read_text().replace("time.sleep(600)", f"{start}; time.sleep(600)")
    script.write_text(f"import subprocess\n{source}")
    with subprocess.Popen([sys.executable, script, "sleep"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = next(int(line.split()[1]) for line in parent.stdout if line.startswith(b"child"))
        parent.kill()
    wait_until_gone({child})
