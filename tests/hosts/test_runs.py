"""What a run says about workers on two hosts: whose failure came first, what they wrote, which host is gone."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from paceline.tune import Callback
from tests.hosts.engine import HostsEngine
from tools.hosts import NETWORK, Hosts

PORT = 7000


def fail_after_each_other(config: dict[str, int]) -> None:
    """One rank fails and then the other. By the clocks of their hosts it is the other way round for one of them."""
    print(f"output of {socket.gethostname()}")
    train.report({"host": socket.gethostname()})
    if train.get_context().get_world_rank() == config["first"]:
        with socket.create_server(("", PORT)) as server:
            server.accept()
        raise LookupError("the cause")
    with connection_to(f"{NETWORK}.{config['first'] + 1}") as line:
        line.recv(1)  # Until the other is about to raise.
    time.sleep(0.2)  # It may be slow.
    raise RuntimeError("a consequence")


def connection_to(address: str) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=60)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_failure_is_the_cause_whatever_the_clocks_say(
    hosts_engine: HostsEngine, tmp_path: Path, first: int
) -> None:
    result = DataParallelTrainer(
        fail_after_each_other,
        train_loop_config={"first": first},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(engine=hosts_engine, storage_path=str(tmp_path)),
    ).fit(raise_on_error=False)
    summary = str(result.error).splitlines()[0]
    assert f"rank {first}" in summary
    assert "LookupError: the cause" in summary
    for rank in (0, 1):
        assert f"output of h{rank + 1}" in (Path(result.path) / "logs" / f"rank_{rank}.log").read_text()


def wait_unless_alone(config: dict[str, Any]) -> None:
    """Runs on while there are two hosts; on a single one it reports and ends."""
    context = train.get_context()
    local = {"local_rank": context.get_local_rank(), "local_world_size": context.get_local_world_size()}
    train.report({"host": socket.gethostname(), **local})
    while context.get_local_world_size() == 1:
        time.sleep(0.05)


class KillHost(Callback):
    """Kills a host when the run has its first row."""

    def __init__(self, hosts: Hosts, name: str) -> None:
        self._hosts = hosts
        self._name = name

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if result["local_world_size"] == 1:
            self._hosts.kill(self._name)


def test_a_killed_host_is_noticed_and_the_run_continues_on_the_other(
    own_hosts: Callable[[int], Hosts], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hosts = own_hosts(2)
    with contextlib.closing(HostsEngine(hosts)) as engine:
        result = DataParallelTrainer(
            wait_unless_alone,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                engine=engine,
                storage_path=str(tmp_path),
                callbacks=[KillHost(hosts, "h2")],
                failure_config=FailureConfig(max_failures=1, heartbeat_timeout_s=4.0),
            ),
        ).fit()
    assert re.search(r"rank 1.* h2 .*10\.231\.0\.2", capfd.readouterr().out)
    assert [result.rank_metrics[rank]["host"] for rank in (0, 1)] == ["h1", "h1"]
    assert [result.rank_metrics[rank]["local_rank"] for rank in (0, 1)] == [0, 1]
