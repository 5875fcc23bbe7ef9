"""The driver of a search is asked from outside: about the search, and about one of its trials."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig, session
from paceline.air.errors import RequestError, RestoreError
from paceline.run.requests import request_stacks, request_stop
from paceline.testing.processes import Driver, Marks, wait_for
from paceline.tune import ResultGrid, TuneConfig, Tuner
from paceline.tune.experiment.summary import TrialSummary, experiment_summary_of
from paceline.tune.schedulers import FIFOScheduler
from tests.faults.tune_laboratory import TuneLaboratory

FOREVER = 1_000_000
INTERRUPTED = (-signal.SIGINT, 130)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[TuneLaboratory, Driver]]:
    """Two trials that count for ever, and two that wait for a place."""
    lab = TuneLaboratory(tmp_path)
    with lab.drive(lab.plan(trials=4, iterations=FOREVER, every=0, verbose=1)) as driver:
        for number in (0, 1):
            wait_for(
                lambda number=number: any(m["trial"].endswith(f"_0000{number}") for m in lab.marks.read("reported")),
                f"rows of trial {number}",
            )
        yield lab, driver


def trials(lab: TuneLaboratory) -> list[TrialSummary]:
    return experiment_summary_of(lab.experiment).trials


def test_a_search_is_stopped(live: tuple[TuneLaboratory, Driver]) -> None:
    lab, driver = live
    with pytest.raises(RequestError, match="name the directory of one of its trials"):
        request_stacks(lab.experiment)
    request_stop(lab.experiment)
    assert driver.wait() in INTERRUPTED
    assert "requested from outside" in driver.text()
    summary = experiment_summary_of(lab.experiment)
    assert (summary.status, summary.alive) == ("interrupted", False)
    assert [trial.status for trial in summary.trials[:2]] == ["interrupted"] * 2
    assert not list(lab.experiment.glob("*.requests"))
    with pytest.raises(RequestError, match="is not running"):
        request_stop(lab.experiment)


def test_one_trial_is_stopped_and_the_search_goes_on(live: tuple[TuneLaboratory, Driver]) -> None:
    lab, driver = live
    first, second, *_ = trials(lab)
    assert "counting_trial" in request_stacks(first.path)[0]
    request_stop(first.path)
    wait_for(lambda: trials(lab)[0].status == "finished", "the end of the first trial")
    wait_for(lambda: len(trials(lab)) > 2 and trials(lab)[2].alive, "the third trial, in its place")
    assert trials(lab)[1].status == "running"
    assert "as process" in driver.text()
    with pytest.raises(RequestError, match="is not running"):
        request_stop(first.path)
    assert request_stacks(second.path)


def test_a_killed_search(live: tuple[TuneLaboratory, Driver]) -> None:
    lab, driver = live
    driver.kill()
    with pytest.raises(RequestError, match="is not running"):
        request_stop(lab.experiment)
    with pytest.raises(RequestError, match=r"is not running \(it was killed\)"):
        request_stop(trials(lab)[0].path)


class PausesTheFirst(FIFOScheduler):
    """The first trial waits after its first row until all others have ended."""

    @property
    def decides(self) -> bool:
        return True

    def on_trial_result(self, controller: Any, trial: Any, result: Any) -> Any:
        return self.PAUSE if trial.trial_id.endswith("_00000") else self.CONTINUE

    def choose_trial_to_run(self, controller: Any) -> Any:
        pending = [trial for trial in controller.waiting_trials() if trial.status == "PENDING"]
        return pending[0] if pending else None


def test_a_trial_that_is_paused(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")

    def count(config: dict[str, Any]) -> None:
        marks = Marks(config["marks"])
        for step in range(FOREVER):
            session.report({"step": step})
            marks.say("reported", x=config["x"])
            if (marks.directory / "end.gate").exists():
                return

    outcome: list[ResultGrid] = []
    tuner = Tuner(
        count,
        param_space={"x": tune.grid_search([0, 1]), "marks": str(marks.directory)},
        tune_config=TuneConfig(scheduler=PausesTheFirst(), max_concurrent_trials=2),
        run_config=RunConfig(name="paused", storage_path=str(tmp_path / "results"), verbose=0),
    )
    thread = threading.Thread(target=lambda: outcome.append(tuner.fit()))
    thread.start()
    try:
        root = tmp_path / "results" / "paused"
        of = _trials_of(root)
        wait_for(lambda: len(of()) == 2 and of()[0].reached.iteration == 1, "the first row of the first trial")
        marks.wait("reported", x=1)
        wait_for(lambda: _is_stopped(of()[0].path), "that the paused trial can be asked")
        wait_for(lambda: of()[0].status == "finished", "the end of the first trial")
        assert of()[1].status == "running"
    finally:
        marks.open_gate("end")
        thread.join(60)
    assert [result.status for result in outcome[0]] == ["finished", "finished"]
    assert outcome[0][0].metrics["training_iteration"] == 1


def _trials_of(root: Path) -> Callable[[], list[TrialSummary]]:
    def look() -> list[TrialSummary]:
        try:
            return experiment_summary_of(root).trials
        except RestoreError:  # it has not begun
            return []

    return look


def _is_stopped(path: str) -> bool:
    request_stop(path)
    return True
