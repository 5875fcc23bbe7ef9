"""Agents on hosts that are cut off and come back: nothing of the old attempt stays, and the host can be used again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.engine.base import WorkerDied
from paceline.engine.remote.group import RemoteGroup
from paceline.testing.engine_tools import collect, placement_in, run_task
from paceline.testing.processes import wait_for
from tests.engine.local import tasks
from tests.engine.remote.engine import AgentsEngine
from tools.hosts import Hosts

HEARTBEAT_S = 3.0


def processes_on(hosts: Hosts, name: str) -> list[str]:
    """The command lines of agents, wardens, workers and what these have started on a host."""
    script = 'for d in /proc/[0-9]*; do tr "\\0" " " < $d/cmdline; echo; done'
    lines = hosts.run(name, ["sh", "-c", script]).splitlines()
    return [line for line in lines if "paceline/engine" in line or "paceline.engine" in line or "sleep 1000" in line]


def lost_rank(group: RemoteGroup) -> WorkerDied:
    (event,) = collect(group, bool)
    assert isinstance(event, WorkerDied)
    return event


@pytest.mark.parametrize("healed_after", ["the agent has ended", "the driver has noticed"])
def test_a_host_is_cut_off_and_comes_back(own_hosts: Callable[..., Hosts], tmp_path: Path, healed_after: str) -> None:
    hosts = own_hosts(2)
    with contextlib.closing(AgentsEngine(hosts=hosts)) as engine:
        group = engine.start_group(placement_in(tmp_path, 2, heartbeat_timeout_s=HEARTBEAT_S))
        run_task(group, tasks.start_a_family)
        collect(group, lambda events: len(events) == 2)
        assert len(processes_on(hosts, "h2")) >= 6
        hosts.cut("h2")
        cut_at = time.monotonic()
        event = lost_rank(group)
        assert (event.rank, event.failure.kind) == (1, "node_lost")
        assert event.failure.message == "h2 (10.231.0.2) has given no sign of life for 3 s"
        assert time.monotonic() - cut_at < HEARTBEAT_S + 1
        group.shutdown()
        if healed_after == "the agent has ended":
            wait_for(lambda: not processes_on(hosts, "h2"), "the end of everything on the host")
            assert time.monotonic() - cut_at < 2 * HEARTBEAT_S + 2
        hosts.heal("h2")
        again = engine.start_group(placement_in(tmp_path / "again", 2))
        assert again.execute(os.getpid) == [again.processes()[rank] for rank in (0, 1)]
        assert "sleep 1000" not in "".join(processes_on(hosts, "h2")), "nothing of the old attempt is left"
        again.shutdown()


def test_a_host_that_is_killed_is_noticed_in_time(own_hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    hosts = own_hosts(2)
    with contextlib.closing(AgentsEngine(hosts=hosts)) as engine:
        group = engine.start_group(placement_in(tmp_path, 2, heartbeat_timeout_s=HEARTBEAT_S))
        run_task(group, tasks.say_and_wait)
        collect(group, lambda events: len(events) == 2)
        hosts.kill("h2")
        killed_at = time.monotonic()
        event = lost_rank(group)
        assert (event.rank, event.failure.kind) == (1, "node_lost")
        assert "h2 (10.231.0.2)" in event.failure.message
        assert time.monotonic() - killed_at < HEARTBEAT_S + 1
        group.shutdown()


def test_a_killed_agent_leaves_nothing_on_its_host(own_hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    hosts = own_hosts(1)
    with contextlib.closing(AgentsEngine(hosts=hosts)) as engine:
        group = engine.start_group(placement_in(tmp_path, 1))
        run_task(group, tasks.start_a_family)
        collect(group, bool)
        hosts.run("h1", ["kill", f"-{signal.SIGKILL}", str(engine.nodes[0].agent)])
        assert "the agent of h1 (10.231.0.1) is gone" in lost_rank(group).failure.message
        wait_for(lambda: not processes_on(hosts, "h1"), "the end of everything on the host")
        group.shutdown()
        engine.start_group(placement_in(tmp_path / "again", 1)).shutdown()
        found = [line for line in hosts.run("h1", ["ls", "/tmp"]).splitlines() if "paceline-agent" in line]
        assert len(found) == 1, "the directory of the agent that is there now"
