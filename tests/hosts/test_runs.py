"""What a run says about workers on two hosts: whose failure came first, what they wrote, which host is gone."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import train, tune
from paceline.compat.train import get_address_and_port
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from paceline.tune import Callback
from tests.engine.remote.engine import AgentsEngine
from tools.hosts import NETWORK, Hosts

PORT = 7000
ROUND_TRIPS = 300
"""They take far longer than the error with which the clocks of hosts are compared: half of the quickest of several
round trips. On a busy machine that one takes as long as dozens of quick ones."""
is_described = threading.Event()


class FirstError(LookupError):
    """Notices that it is described: the worker has noted before when it failed."""

    def __str__(self) -> str:
        is_described.set()
        return "the cause"


def fail_after_each_other(config: dict[str, int]) -> None:
    """One rank fails and then the other. By the clocks of their hosts it is the other way round for one of them."""
    print(f"output of {socket.gethostname()}")
    train.report({"host": socket.gethostname()})
    is_first = train.get_context().get_world_rank() == config["first"]
    if is_first:
        server = socket.create_server(("", PORT))
        threading.Thread(target=answer_when_described, args=(server,), daemon=True).start()
    train.collective.barrier()
    if is_first:
        raise FirstError
    with socket.create_connection((f"{NETWORK}.{config['first'] + 1}", PORT), timeout=60) as line:
        for _ in range(ROUND_TRIPS):
            line.sendall(b"?")
            line.recv(1)
    raise RuntimeError("a consequence")


def answer_when_described(server: socket.socket) -> None:
    line, _ = server.accept()
    is_described.wait()
    while line.recv(1):
        line.sendall(b"!")


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_failure_is_the_cause_whatever_the_clocks_say(
    hosts_engine: AgentsEngine, tmp_path: Path, first: int
) -> None:
    result = DataParallelTrainer(
        fail_after_each_other,
        train_loop_config={"first": first},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(engine=hosts_engine, storage_path=str(tmp_path)),
    ).fit(raise_on_error=False)
    summary = str(result.error).splitlines()[0]
    assert f"rank {first}" in summary
    assert "FirstError: the cause" in summary
    for rank in (0, 1):
        assert f"output of h{rank + 1}" in (Path(result.path) / "logs" / f"rank_{rank}.log").read_text()


def look_around(config: dict[str, Any]) -> None:
    """What a function may ask for, where the run's directory is on another machine."""
    print("to be copied")
    context = train.get_context()
    trial_dir = Path(context.get_trial_dir() or "")
    (trial_dir / "note").write_text("stays here")
    address, port = get_address_and_port()
    train.report({"trial_dir": trial_dir.name, "address": address, "port": port})


def test_a_function_finds_what_it_needs_on_its_own_host(hosts_engine: AgentsEngine, tmp_path: Path) -> None:
    result = DataParallelTrainer(
        look_around,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(engine=hosts_engine, storage_path=str(tmp_path), log_to_file=True),
    ).fit()
    place = Path(result.path)
    assert [result.rank_metrics[rank]["address"] for rank in (0, 1)] == ["10.231.0.1", "10.231.0.2"]
    assert result.metrics["trial_dir"] == place.name
    assert (place / "stdout").read_text() == "to be copied\n"
    assert not (place / "note").exists()


def count_to_three(config: dict[str, Any]) -> None:
    checkpoint = train.get_checkpoint()
    begun = 0 if checkpoint is None else checkpoint.to_dict()["done"]
    for done in range(begun + 1, 4):
        metrics = {"done": done, "begun": begun, "score": done * config["factor"], "host": socket.gethostname()}
        train.report(metrics, checkpoint=Checkpoint.from_dict({"done": done}))
        if config["factor"] == 2 and done == 2 and not begun:
            os._exit(1)


def test_the_trials_of_a_search_run_on_all_hosts(hosts_engine: AgentsEngine, tmp_path: Path) -> None:
    """One of them dies there, and continues from its checkpoint on whichever host."""
    results = tune.Tuner(
        count_to_three,
        param_space={"factor": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=RunConfig(
            engine=hosts_engine, storage_path=str(tmp_path), failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    assert [result.error for result in results] == [None] * 3
    assert sorted(result.metrics["score"] for result in results) == [3, 6, 9]
    assert [result.metrics["begun"] for result in results if result.config["factor"] == 2] == [2]
    assert {result.metrics["host"] for result in results} == {"h1", "h2"}
    assert results.get_best_result().checkpoint.to_dict()["done"] == 3


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
    with contextlib.closing(AgentsEngine(hosts=hosts)) as engine:
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
    assert re.search(r"rank 1: h2 \(10\.231\.0\.2\) has given no sign of life for 4 s", capfd.readouterr().out)
    assert [result.rank_metrics[rank]["host"] for rank in (0, 1)] == ["h1", "h1"]
    assert [result.rank_metrics[rank]["local_rank"] for rank in (0, 1)] == [0, 1]
