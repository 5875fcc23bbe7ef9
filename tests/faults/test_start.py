"""Workers and wardens that die while a run starts: retried like any other death, in a search as well."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import FailureConfig, RunConfig, ScalingConfig, session
from paceline.engine.local import messages
from paceline.engine.local.warden_client import WardenClient
from paceline.run.backend import Backend, BackendConfig
from paceline.run.run import BREAK_OFF_WAIT_S, Run
from paceline.testing.invariants import journal_records
from paceline.testing.processes import children, wait_for
from paceline.train import DataParallelTrainer
from paceline.tune import Stopper, TuneConfig, Tuner
from tests.faults.cases import mostly_slow
from tests.faults.laboratory import Laboratory

KINDS = {"worker": "signal", "warden": "engine"}
ONE_RETRY = {"failure_config": FailureConfig(max_failures=1)}


def report_once(config: dict[str, Any]) -> None:
    session.report({"seen": config.get("x", 0)})


@pytest.fixture
def kill_at_start(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Kill a worker or the warden of the first groups, when the workers have just been asked for."""

    def arm(victim: str, times: int) -> None:
        left = [True] * times
        tell = WardenClient.tell

        def tell_and_kill(warden: WardenClient, message: messages.ToWarden, fds: Sequence[int] = ()) -> None:
            tell(warden, message, fds)
            is_last = isinstance(message, messages.Spawn) and message.rank == message.world_size - 1
            if is_last and left:
                left.pop()
                if victim == "worker":
                    os.kill(wait_for(lambda: children(warden.pid), "a worker")[0].pid, signal.SIGKILL)
                elif not warden.lost:
                    os.kill(warden.pid, signal.SIGKILL)

        monkeypatch.setattr(WardenClient, "tell", tell_and_kill)

    return arm


@pytest.mark.parametrize("victim", KINDS)
def test_a_death_during_the_start_is_retried(
    lab: Laboratory, kill_at_start: Callable[[str, int], None], victim: str
) -> None:
    kill_at_start(victim, 1)
    result = lab.trainer(report_once, **ONE_RETRY).fit()
    assert result.attempts == 2
    (failure,) = [record for record in journal_records(lab.trial_dir) if record["kind"] == "failure"]
    assert failure["cause"] == KINDS[victim]


@pytest.mark.parametrize("victim", mostly_slow(KINDS, everyday=["worker"]))
def test_a_trial_that_never_started_has_its_config(
    lab: Laboratory, kill_at_start: Callable[[str, int], None], victim: str
) -> None:
    kill_at_start(victim, 1)
    grid = Tuner(
        report_once,
        param_space={"x": 7},
        run_config=RunConfig(storage_path=str(lab.storage), verbose=0),
    ).fit()
    (result,) = grid
    assert result.error is not None
    assert result.config == {"x": 7}
    (again,) = Tuner.restore(grid.experiment_path, trainable=report_once).get_results()
    assert again.config == {"x": 7}


@pytest.mark.parametrize("victim", mostly_slow(KINDS, everyday=["warden"]))
def test_a_search_goes_through_deaths_at_the_start(
    lab: Laboratory, kill_at_start: Callable[[str, int], None], victim: str
) -> None:
    kill_at_start(victim, 2)
    grid = Tuner(
        report_once,
        param_space={"x": tune.grid_search([0, 1, 2])},
        run_config=RunConfig(storage_path=str(lab.storage), verbose=0, failure_config=FailureConfig(max_failures=8)),
    ).fit()
    assert [result.metrics["seen"] for result in grid] == [0, 1, 2]


class SlowToConnect(Backend):
    """Connecting takes until the test says so."""

    gate = threading.Event()
    connecting = 0

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        SlowToConnect.connecting += 1
        assert SlowToConnect.gate.wait(60)


class SlowConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return SlowToConnect


class InterruptsWhenAllConnect(Stopper):
    def __call__(self, trial_id: str, result: Any) -> bool:
        return False

    def stop_all(self) -> bool:
        if SlowToConnect.connecting >= 4:
            raise KeyboardInterrupt
        return False


def test_an_interrupted_search_waits_once_for_all_workers_that_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    wait = Run.wait_for_job

    def noted(run: Run, timeout: float | None = None) -> None:
        waits.append(timeout or 0.0)
        wait(run, timeout)

    monkeypatch.setattr(Run, "wait_for_job", noted)
    trainer = DataParallelTrainer(
        report_once,
        backend_config=SlowConfig(),
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.1}, trainer_resources={"CPU": 0}),
    )
    tuner = Tuner(
        trainer,
        param_space={"train_loop_config": {"x": tune.grid_search([1, 2, 3, 4])}},
        tune_config=TuneConfig(max_concurrent_trials=4),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0, stop=InterruptsWhenAllConnect()),
    )
    try:
        with pytest.raises(KeyboardInterrupt):
            tuner.fit()
    finally:
        SlowToConnect.gate.set()
    assert len(waits) >= 4
    assert sum(waits) < 2 * BREAK_OFF_WAIT_S
