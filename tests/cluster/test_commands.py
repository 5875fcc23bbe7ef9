"""Commands on a live run whose ranks are on three hosts that share nothing: ls, show, logs, stacks and stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.testing.processes import wait_for
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from tests.cluster.driver import tell
from tests.cluster.ray_hosts import RESULTS, DriverProcess, RayHosts
from tools.hosts import Hosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
PROJECT = Path(__file__).parents[2]
RANKS = 3
HELD = 3
"""The report after which every rank holds."""
SIGNS = f"{RESULTS}/signs"
"""A folder on each host: `rank_<N>` is there when that rank holds, `go_on` lets the ranks of the host continue."""
ASK_S = 30.0


def count_and_hold(config: dict[str, Any]) -> None:
    rank, signs = train.get_context().get_world_rank(), Path(config["signs"])
    signs.mkdir(parents=True, exist_ok=True)
    for step in range(1, HELD + 1):
        print(f"step {step} of rank {rank} on {socket.gethostname()}", flush=True)
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
    (signs / f"rank_{rank}").write_text(str(os.getpid()))
    hold(signs)
    for step in range(HELD + 1, 1_000_000):
        print(f"step {step} of rank {rank} on {socket.gethostname()}", flush=True)
        train.report({"step": step})
        time.sleep(0.05)


def hold(signs: Path) -> None:
    while not (signs / "go_on").exists():
        time.sleep(0.02)


def fit(storage: str, signs: str, cpus: int | None) -> dict[str, Any]:
    """How the run ended, as the driver's program sees it."""
    trainer = DataParallelTrainer(
        count_and_hold,
        train_loop_config={"signs": signs},
        scaling_config=ScalingConfig(num_workers=RANKS, resources_per_worker=cpus and {"CPU": cpus}),
        run_config=RunConfig(name="live", storage_path=storage, failure_config=FailureConfig(start_timeout_s=100)),
    )
    tell("begins")
    try:
        trainer.fit()
    except KeyboardInterrupt as interruption:
        result = interruption.result  # type: ignore[attr-defined]
        return {"status": result.status, "step": result.metrics.get("step")}
    raise AssertionError("the run ended by itself")


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


def command(hosts: Hosts, host: str, *arguments: str) -> Said:
    """`paceline ...` in a terminal on a host."""
    environment = {name: os.environ[name] for name in ("PATH", "PACELINE_TEST_SESSION") if name in os.environ}
    environment |= {"HOME": "/tmp", "PYTHONPATH": str(PROJECT), "PACELINE_RESULTS_DIR": RESULTS}
    done = subprocess.run(
        hosts[host].command(["env", "-C", "/", sys.executable, "-m", "paceline.cli.main", *arguments]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=ASK_S + 60,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Live:
    """A run that holds on all its hosts."""

    ray_hosts: RayHosts
    driver: DriverProcess
    storage: str
    signs: str
    where: dict[int, str]
    """The host of each rank."""

    def command(self, name: str, *arguments: str, host: str = "h1") -> Said:
        return command(self.ray_hosts.hosts, host, name, f"{self.storage}/live", *arguments)

    def rows(self, name: str, *arguments: str, host: str = "h1") -> Any:
        said = self.command(name, *arguments, "--format=json", host=host)
        assert said.code == 0, said
        return json.loads(said.out)

    def go_on(self) -> None:
        for host in set(self.where.values()):
            self.ray_hosts.path(host, f"{self.signs}/go_on").touch()


def start(ray_hosts: RayHosts, engine: str, storage: str, signs: str) -> Live:
    """With the driver on h1; on the Ray engine one rank is on each host."""
    names = ray_hosts.hosts.names if engine == "ray" else ["h1"]
    cpus = 2 if engine == "ray" else None
    variables = {"PACELINE_ENGINE": engine}
    driver = ray_hosts.start_driver("h1", fit, variables=variables, storage=storage, signs=signs, cpus=cpus)
    driver.wait_for("begins")

    def where() -> dict[int, str]:
        at_work = {
            rank: name
            for rank in range(RANKS)
            for name in names
            if ray_hosts.path(name, f"{signs}/rank_{rank}").exists()
        }
        return at_work if len(at_work) == RANKS else {}

    return Live(ray_hosts, driver, storage, signs, wait_for(where, "ranks that hold", 120.0))


@pytest.mark.parametrize("engine", ["ray", "local"])
def test_a_live_run_is_looked_at_and_stopped(ray_hosts: RayHosts, engine: str, tmp_path: Path) -> None:
    live = start(ray_hosts, engine, f"{RESULTS}/{tmp_path.name}", f"{SIGNS}/{tmp_path.name}")
    if engine == "ray":
        assert sorted(live.where.values()) == ["h1", "h2", "h3"]
    check_list(live, "running", alive=True)
    check_logs(live)
    check_stacks(live)

    assert live.rows("stop", f"--timeout={ASK_S:g}") | {"path": ""} == {"path": "", "stop": "requested", "ended": False}
    wait_for(lambda: "stopping at the next report" in live.driver.output.read_text(), "a driver that stops", 10.0)
    check_list(live, "running", alive=True)  # until the next report; meanwhile the ranks have heard of it
    live.go_on()
    outcome = live.driver.result()
    assert outcome == {"status": "interrupted", "step": HELD + 1}
    check_list(live, "interrupted", alive=False)
    check_logs(live, last=HELD + 1)
    assert "requested from outside, by process " in live.driver.output.read_text()
    again = live.command("stop")
    assert (again.code, again.out) == (1, "")
    assert "is not running (it was interrupted)" in again.err
    assert live.command("stacks").code == 1


def check_list(live: Live, status: str, *, alive: bool) -> None:
    (row,) = live.rows("ls")
    assert (row["status"], row["alive"]) == (status, alive)
    shown = live.command("show")
    assert shown.code == 0, shown
    assert status in shown.out


def check_logs(live: Live, last: int = HELD) -> None:
    """Up to that step, of every rank."""
    said = live.command("logs")
    assert said.code == 0, said
    assert sorted(said.out.splitlines()) == [
        f"rank {rank} | step {step} of rank {rank} on {host}"
        for rank, host in sorted(live.where.items())
        for step in range(1, last + 1)
    ]
    tail = live.command("logs", "--rank=2", "--tail=1")
    assert tail.out.endswith(f"step {last} of rank 2 on {live.where[2]}\n"), tail


def check_stacks(live: Live, host: str = "h1") -> None:
    rows = live.rows("stacks", f"--timeout={ASK_S:g}", host=host)
    assert [row["rank"] for row in rows] == list(range(RANKS))
    for row in rows:
        assert [line.rpartition(" ")[2] for line in row["stack"].splitlines()[1:]] == ["hold", "count_and_hold"], row
    said = live.command("stacks", f"--timeout={ASK_S:g}", host=host)
    users = [line for line in said.out.splitlines() if line.startswith("> ")]
    assert [line.rpartition(" ")[2] for line in users] == ["hold", "count_and_hold"] * RANKS, said


def test_a_rank_that_is_stopped_costs_only_its_own_stack(ray_hosts: RayHosts, tmp_path: Path) -> None:
    live = start(ray_hosts, "ray", f"{RESULTS}/{tmp_path.name}", f"{SIGNS}/{tmp_path.name}")
    pid = worker_on(live, live.where[1])
    os.kill(pid, signal.SIGSTOP)
    try:
        rows = live.rows("stacks", f"--timeout={ASK_S:g}")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [" in hold\n" in row["stack"] for row in rows] == [True, False, True]
    assert "did not answer" in rows[1]["stack"]
    check_stacks(live)
    end(live)


def worker_on(live: Live, host: str) -> int:
    """Its process id on this machine; on its host it has another."""
    own = live.ray_hosts.path(
        host, f"{live.signs}/rank_{next(rank for rank in live.where if live.where[rank] == host)}"
    )
    inside = own.read_text()
    for pid in live.ray_hosts.processes(host):
        status = Path(f"/proc/{pid}/status").read_text()
        if next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1] == inside:
            return pid
    raise AssertionError(f"{host} has no process {inside}")


def end(live: Live) -> None:
    assert live.command("stop", f"--timeout={ASK_S:g}").code == 0
    live.go_on()
    assert live.driver.result()["status"] == "interrupted"


def test_a_run_that_waits_for_room_is_stopped(ray_hosts: RayHosts, tmp_path: Path) -> None:
    """It never had workers. The one that has them goes on."""
    first = start(ray_hosts, "ray", f"{RESULTS}/{tmp_path.name}", f"{SIGNS}/{tmp_path.name}")
    storage = f"{RESULTS}/{tmp_path.name}_waits"
    waits = ray_hosts.start_driver("h2", fit, storage=storage, signs=SIGNS, cpus=2)
    waits.wait_for("begins")

    def row() -> list[Any]:
        said = command(ray_hosts.hosts, "h2", "ls", storage, "--format=json")
        return list(json.loads(said.out)) if said.code == 0 else []

    (listed,) = wait_for(row, "a run that waits", 60.0)
    assert (listed["status"], listed["alive"]) == ("running", True)

    def is_refused() -> bool:
        refused = command(ray_hosts.hosts, "h2", "stacks", storage, f"--timeout={ASK_S:g}")
        assert (refused.code, refused.out) == (1, "")
        assert "it has no stacks now" in refused.err
        return "workers are coming up" in refused.err

    wait_for(is_refused, "a run that waits for room", 60.0)
    stopped = command(ray_hosts.hosts, "h2", "stop", storage, "--wait", f"--timeout={ASK_S:g}")
    assert stopped.code == 0, stopped
    assert waits.result() == {"status": "interrupted", "step": None}
    assert "no longer waiting for room" in waits.output.read_text()
    check_stacks(first)
    end(first)


def test_whoever_shares_the_directory_can_ask(own_ray_hosts: Callable[..., RayHosts], tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    ray_hosts = own_ray_hosts(3, shared)
    live = start(ray_hosts, "ray", str(shared), SIGNS)
    (row,) = live.rows("ls", host="h3")
    assert (row["status"], row["alive"]) == ("running", True)
    assert live.command("logs", host="h3").out == live.command("logs").out
    check_stacks(live, host="h3")
    assert live.command("stop", f"--timeout={ASK_S:g}", host="h3").code == 0
    live.go_on()
    assert live.driver.result()["status"] == "interrupted"
    output = live.driver.output.read_text()
    assert "requested from outside, by process " in output
    assert " on h3" in output
    ray_hosts.wait_until_clean()
