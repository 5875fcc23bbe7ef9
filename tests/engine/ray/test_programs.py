"""Whole programs on a Ray cluster: how they get there, what reaches their workers, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.air.errors import ConfigError, EngineError
from tests.engine.remote.certificates import make_certificates

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PROGRAMS = Path(__file__).with_name("programs.py")
PATIENCE_S = 150.0
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
"""Not imported here: that changes the environment."""


@contextmanager
def program(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), **variables}
    command = [sys.executable, str(PROGRAMS), *arguments]
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def output_of(*arguments: str, **variables: str) -> str:
    with program(*arguments, **variables) as running:
        output, _ = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 0, output
        return output


def said(output: str) -> dict[str, Any]:
    """All that the program says to the test."""
    everything: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("SAYS "):
            everything.update(json.loads(line.removeprefix("SAYS ")))
    return everything


def next_said(running: subprocess.Popen[str]) -> dict[str, Any]:
    assert running.stdout is not None
    seen = []
    for line in running.stdout:
        seen.append(line)
        if line.startswith("SAYS "):
            return dict(json.loads(line.removeprefix("SAYS ")))
    raise AssertionError(f"the program ended:\n{''.join(seen)}")


def test_the_first_line_names_the_cluster_and_who_chose_it(ray_cluster: Any) -> None:
    """S14."""
    output = output_of("by_variable", RAY_ADDRESS=ray_cluster.address)
    assert said(output) == {"world_size": 2}
    [warning] = [line for line in output.splitlines() if "authentication" in line]
    assert "Ray's authentication is off" in warning
    lines = output.splitlines()[2:]  # a warning shows the line that led to it
    assert lines[0] == f"paceline runs on the Ray cluster at {ray_cluster.address} (chosen by RAY_ADDRESS)"


@needs_ray
def test_without_an_address_a_ray_of_its_own_is_started_and_ended(tmp_path: Path) -> None:
    output = output_of("own_ray")
    assert said(output) == {"world_size": 2}
    assert "paceline runs on a Ray cluster of its own on this machine (chosen by RunConfig(engine=...))" in output


def test_a_runtime_env_reaches_workers(ray_cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "working").mkdir()
    (tmp_path / "working" / "in_working_dir.py").write_text("NAME = 'a module of working_dir'\n")
    (tmp_path / "working" / "data.txt").write_text("a file")
    (tmp_path / "in_py_modules").mkdir()
    (tmp_path / "in_py_modules" / "__init__.py").write_text("NAME = 'a module of py_modules'\n")
    output = output_of(
        "with_runtime_env", ray_cluster.address, str(tmp_path / "working"), str(tmp_path / "in_py_modules")
    )
    expected = {
        "variable": "yes",
        "modules": ["a module of working_dir", "a module of py_modules"],
        "file": "a file",
    }
    assert said(output)["ranks"] == {str(rank): {**expected, "cwd": f"rank_{rank}"} for rank in range(2)}


@needs_ray
def test_where_ray_has_certificates_our_connections_are_encrypted(tmp_path: Path) -> None:
    addresses = [it.address for its in psutil.net_if_addrs().values() for it in its if it.family == socket.AF_INET]
    variables = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
    paths = dict(zip(variables, make_certificates(tmp_path / "tls", addresses), strict=True))
    told = said(output_of("on_encrypted_cluster", RAY_USE_TLS="1", **paths))
    assert told == {"world_size": 2, "members": "listened to", "strangers": "TLSV13_ALERT_CERTIFICATE_REQUIRED"}


def test_a_driver_may_be_a_task_or_an_actor(ray_cluster: Any) -> None:
    assert said(output_of("inside_task_and_actor", ray_cluster.address)) == {"world_sizes": [2, 2]}


def test_nothing_is_left_of_a_driver_that_was_killed(ray_cluster: Any) -> None:
    from ray._private.state import actors
    from ray.util import placement_group_table

    def left() -> list[str]:
        """Of all jobs; that of the tests themselves has agents, too, and no group."""
        groups = [name for name, entry in placement_group_table().items() if entry["state"] != "REMOVED"]
        return groups + [name for name in alive() if name not in before]

    def alive() -> set[str]:
        return {name for name, entry in actors().items() if entry["State"] != "DEAD"}

    before = alive()
    with program("hold", ray_cluster.address) as running:
        worker = next_said(running)["pid"]
        assert left()
        running.send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        while left() or os.path.exists(f"/proc/{worker}"):
            assert time.monotonic() - killed_at < 10, left()
            time.sleep(0.05)


def test_a_run_that_waits_for_room_says_so_and_can_be_interrupted(ray_cluster: Any) -> None:
    """J4."""
    with program("wait_for_room", ray_cluster.address) as running:
        assert running.stdout is not None
        shown = ""
        while "Free on its nodes" not in shown:
            line = running.stdout.readline()
            assert line, shown
            shown += line
        assert "no room for 2 workers with CPU 1 each" in shown
        running.send_signal(signal.SIGINT)
        interrupted_at = time.monotonic()
        rest, _ = running.communicate(timeout=PATIENCE_S)
        assert time.monotonic() - interrupted_at < 20, "it would wait without limit"
        assert running.returncode == -signal.SIGINT, "as without Ray: a shell sees that it was interrupted"
        assert "KeyboardInterrupt: training was interrupted" in rest


def test_sigterm_ends_a_run_well_though_ray_has_a_handler(ray_cluster: Any) -> None:
    with program("with_own_ray_init", ray_cluster.address) as running:
        assert next_said(running) == {"started": True}
        running.send_signal(signal.SIGTERM)
        rest, _ = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 128 + signal.SIGTERM, rest
        assert "interrupted after" in rest


def test_an_address_where_nothing_listens_is_named_at_once() -> None:
    pytest.importorskip("ray")
    from paceline.engine.ray.connection import Connection, _check_reachable

    began = time.monotonic()
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:1: .*refused") as caught:
        _check_reachable("127.0.0.1:1")
    assert "ray start --address" in str(caught.value)
    with pytest.raises(ConfigError, match="host:port"):
        _check_reachable("nowhere")
    with pytest.raises(ConfigError, match="ray job submit"):
        Connection("ray://127.0.0.1:10001", {}, lambda: None)
    assert time.monotonic() - began < 5


def test_the_loss_of_the_head_is_an_error_that_says_how_to_go_on() -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    before = set(psutil.Process().children(recursive=True))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    processes: set[psutil.Process] = set()
    try:
        cluster.add_node(num_cpus=2)
        address = cluster.address
        processes = set(psutil.Process().children(recursive=True)) - before
        with program("lose_cluster", address) as running:
            assert next_said(running) == {"started": True}
            cluster.head_node.kill_gcs_server()
            lost_at = time.monotonic()
            told = next_said(running)
            assert time.monotonic() - lost_at < 90
            assert told["cause"] == "EngineLost"
            assert f"the Ray cluster at {address} is gone" in told["text"]
            assert "To continue: " in told["text"]
            assert next_said(running) == {"ended": True}
            running.wait(30)
    finally:
        cluster.shutdown()
        for process in psutil.wait_procs(processes, timeout=1)[1]:  # What a raylet leaves that has lost its head.
            process.kill()
