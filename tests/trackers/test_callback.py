"""Runs and searches with a tracker: what arrives, and what happens when the tracker fails."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline import train, tune
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.run.callbacks import CallbackList
from paceline.testing.processes import Driver, wait_for
from paceline.trackers import RejectedError, RunGoneError, TrackedRow, TrackedRun, TrackerCallback, send
from paceline.trackers import callback as module
from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from paceline.tune import Callback, TuneConfig
from paceline.tune.schedulers import TrialScheduler
from tests.trackers.climbs import ROWS, climb, trainer
from tests.trackers.ledger import LedgerTracker, runs
from tests.trackers.readers import read_ledger

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "service"
    path.mkdir()
    return path


def steps(place: Path) -> list[tuple[int, int]]:
    (found,) = read_ledger(place)
    return [(row.attempt, row.step) for row in found.rows]


def test_a_run_arrives_complete_and_without_its_secrets(place: Path, tmp_path: Path) -> None:
    callback = TrackerCallback(LedgerTracker(place))
    result = trainer([callback], tmp_path, lr=0.1, api_key="k-123").fit()
    assert result.warnings == []
    ((run_id, told),) = runs(place).items()
    assert [each["event"] for each in told].count("checkpoint") == ROWS // 3
    assert told[0]["config"] == {"train_loop_config": {"lr": 0.1, "api_key": "***"}}
    assert told[0]["name"] == f"DataParallelTrainer_{told[0]['trial_id']}"
    assert "k-123" not in json.dumps(told)
    assert told[-1] == {"event": "close", "outcome": "finished"}
    assert steps(place) == [(0, index) for index in range(1, ROWS + 1)]
    times = [each["time"] for each in told if each["event"] == "row"]
    assert times == sorted(times)
    cursor = json.loads(Path(result.path, "trackers", "ledger.json").read_text())
    assert (cursor["run_id"], cursor["rows"], cursor["outcome"]) == (run_id, ROWS, "finished")


def test_reports_never_see_a_tracker() -> None:
    """A callback that wants rows costs each report something, and is called while the report waits."""
    assert not CallbackList([TrackerCallback(LedgerTracker(Path("unused")))]).wants_rows


def fail_once(config: Mapping[str, Any]) -> None:
    if train.get_checkpoint() is None:
        climb({"rows": 5})
        raise RuntimeError("once")
    climb({})


class SlowImport(LedgerTracker):
    def prepare(self) -> None:
        (self.directory / "prepared").touch()
        raise ImportError("half of the library is missing")


def test_the_library_is_imported_before_workers_start_and_problems_are_left_to_the_first_call(
    place: Path, tmp_path: Path
) -> None:
    def loop() -> None:
        train.report({"is_prepared": (place / "prepared").exists()})

    config = RunConfig(storage_path=str(tmp_path), callbacks=[TrackerCallback(SlowImport(place))], verbose=0)
    result = DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
    assert result.metrics["is_prepared"]
    assert steps(place) == [(0, 1)]


def test_a_retry_continues_the_same_run_and_keeps_superseded_rows(place: Path, tmp_path: Path) -> None:
    run_config = RunConfig(
        storage_path=str(tmp_path),
        callbacks=[TrackerCallback(LedgerTracker(place))],
        failure_config=FailureConfig(max_failures=1),
        verbose=0,
    )
    DataParallelTrainer(fail_once, scaling_config=ScalingConfig(num_workers=1), run_config=run_config).fit()
    assert steps(place) == [*((0, index) for index in range(1, 6)), *((1, index) for index in range(4, ROWS + 1))]
    (told,) = runs(place).values()
    assert [each["event"] for each in told].count("open") == 1


def fail(config: Mapping[str, Any]) -> None:
    train.report({"height": 1.0})
    raise RuntimeError("for good")


def test_a_failed_run_is_closed_as_failed_and_a_restore_opens_it_again(place: Path, tmp_path: Path) -> None:
    callbacks = [TrackerCallback(LedgerTracker(place))]
    run_config = RunConfig(storage_path=str(tmp_path), callbacks=callbacks, verbose=0)
    with pytest.raises(TrainingFailedError) as caught:
        DataParallelTrainer(fail, scaling_config=ScalingConfig(num_workers=1), run_config=run_config).fit()
    (found,) = read_ledger(place)
    assert found.outcome == "failed"
    path = caught.value.result.path  # type: ignore[attr-defined]
    again = RunConfig(callbacks=[TrackerCallback(LedgerTracker(place))], verbose=0)
    DataParallelTrainer.restore(path, train_loop_per_worker=climb, run_config=again).fit()
    (found,) = read_ledger(place)
    assert found.outcome == "finished"
    assert steps(place) == [(0, 1), *((1, index) for index in range(1, ROWS + 1))]


def test_restoring_a_finished_run_tells_the_tracker_nothing(place: Path, tmp_path: Path) -> None:
    result = trainer([TrackerCallback(LedgerTracker(place))], tmp_path).fit()
    before = runs(place)
    (place / "down").touch()
    again = RunConfig(callbacks=[TrackerCallback(LedgerTracker(place))], verbose=0)
    restored = DataParallelTrainer.restore(result.path, train_loop_per_worker=climb, run_config=again).fit()
    assert restored.warnings == []
    assert runs(place) == before


# -- a tracker that fails


def test_a_tracker_that_is_down_is_told_of_and_the_rows_can_be_sent_later(place: Path, tmp_path: Path) -> None:
    (place / "down").touch()
    callback = TrackerCallback(LedgerTracker(place))
    callback.wait_at_end_s = 0.2
    result = trainer([callback], tmp_path).fit()
    assert result.metrics["height"] == 10.0 * ROWS
    outage, end = result.warnings
    assert "the ledger service" in outage
    assert "nobody answers at http://service" in outage
    assert "secret" not in outage + end
    assert f"last {ROWS} rows" in end
    assert f"paceline.trackers.send({result.path!r}, TrackerCallback(...))" in end
    (place / "down").unlink()
    assert send(result.path, callback) == ROWS
    assert steps(place) == [(0, index) for index in range(1, ROWS + 1)]
    assert read_ledger(place)[0].outcome == "finished"
    assert send(result.path, callback) == 0


class Counting(LedgerTracker):
    """Remembers how often it was called in vain."""

    failures = 0

    def open(self, run: TrackedRun, resume_id: str | None) -> str:
        try:
            return super().open(run, resume_id)
        except ConnectionError:
            self.failures += 1
            raise


def test_rows_arrive_when_the_tracker_is_back_and_there_is_one_warning(place: Path, tmp_path: Path) -> None:
    tracker, gate = Counting(place), tmp_path / "gate"
    (place / "down").touch()

    def come_back() -> None:
        wait_for(lambda: tracker.failures >= 2, "the tracker to be called in vain")
        (place / "down").unlink()
        gate.touch()

    helper = threading.Thread(target=come_back)
    helper.start()
    result = trainer([TrackerCallback(tracker)], tmp_path, gate=str(gate)).fit()
    helper.join()
    (warning,) = result.warnings
    assert "stay in the run's journal" in warning
    assert steps(place) == [(0, index) for index in range(1, ROWS + 1)]
    assert read_ledger(place)[0].outcome == "finished"


HANGS = """
import sys
from pathlib import Path
from paceline.trackers import TrackerCallback
from tests.trackers.climbs import trainer
from tests.trackers.ledger import LedgerTracker

if __name__ == "__main__":
    callback = TrackerCallback(LedgerTracker(Path(sys.argv[1])))
    callback.wait_at_end_s = 0.5
    result = trainer([callback], Path(sys.argv[2])).fit()
    print("rows", result.metrics["training_iteration"], "warnings", len(result.warnings), flush=True)
"""


def test_a_call_that_hangs_keeps_neither_the_run_nor_the_process(place: Path, tmp_path: Path) -> None:
    (place / "hang").touch()
    (tmp_path / "program.py").write_text(HANGS)
    program = [str(tmp_path / "program.py"), str(place), str(tmp_path / "results")]
    with Driver(program, output=tmp_path / "out.txt", env={"PYTHONPATH": str(ROOT)}) as driver:
        assert driver.wait() == 0, driver.text()
        assert f"rows {ROWS} warnings 1" in driver.text()
    (run,) = (path.parent for path in tmp_path.glob("results/*/*/journal.jsonl"))
    (place / "hang").unlink()
    assert send(run, LedgerTracker(place)) == ROWS


class Choosy(LedgerTracker):
    """Rejects every fourth row."""

    def send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        if any(row.index % 4 == 0 for row in rows):
            raise RejectedError("fourth rows are not welcome")
        super().send(run_id, rows)


def test_rows_that_the_service_rejects_are_passed_over_with_one_warning(place: Path, tmp_path: Path) -> None:
    result = trainer([TrackerCallback(Choosy(place, counts=False))], tmp_path).fit()
    assert steps(place) == [(0, index) for index in range(1, ROWS + 1) if index % 4]
    (warning,) = result.warnings
    assert "row 4: fourth rows are not welcome" in warning


class Gone(LedgerTracker):
    """Somebody deletes its runs."""

    def send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        raise RunGoneError("there is no such run at https://me:secret@ledger")


def test_a_run_that_was_deleted_in_the_service_is_given_up_with_a_warning(place: Path, tmp_path: Path) -> None:
    result = trainer([TrackerCallback(Gone(place))], tmp_path).fit()
    (warning,) = result.warnings
    assert "there is no such run" in warning
    assert "secret" not in warning


class Mistaken(LedgerTracker):
    def send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        rows.nothing()  # type: ignore[attr-defined]


def test_a_mistake_in_a_tracker_is_located_and_nobody_waits_for_it(place: Path, tmp_path: Path) -> None:
    callback = TrackerCallback(Mistaken(place), wait_at_end_s=600.0, wait_when_down_s=600.0)
    result = trainer([callback], tmp_path).fit()  # the test would take ten minutes
    first, last = result.warnings
    assert "AttributeError: 'list' object has no attribute 'nothing', at " in first
    assert "fails in the tracker's own code" in first
    assert "test_callback.py:" in first
    assert "has not taken the last" in last


def test_what_is_not_a_tracker_is_refused_with_advice(place: Path) -> None:
    with pytest.raises(ConfigError, match=r"Pass LedgerTracker\(\.\.\.\)\."):
        TrackerCallback(LedgerTracker)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"write TrackerCallback\(LedgerTracker\(\.\.\.\)\)"):
        CallbackList([LedgerTracker(place)])  # type: ignore[list-item]


def test_fit_says_what_it_waits_for_and_that_the_tracker_is_back(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    (place / "down").touch()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        (place / "down").unlink(missing_ok=True)

    class Listening(TrackerCallback):
        def setup(self, *args: Any, **info: Any) -> None:
            super().setup(say=say)

        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            wait_for(lambda: self._couriers[trial.experiment_id].has_been_down, "a failed call")
            super().log_trial_end(trial, failed)

    trainer([Listening(LedgerTracker(place))], tmp_path).fit()
    assert said == [
        "Waiting for the ledger service to take the last rows, for at most 60 s",
        "the ledger service answers again, and has all rows",
    ]
    assert steps(place) == [(0, index) for index in range(1, ROWS + 1)]


def test_two_trackers_of_one_kind_each_have_a_cursor(tmp_path: Path) -> None:
    places = [tmp_path / "first", tmp_path / "second"]
    result = trainer([TrackerCallback(LedgerTracker(place)) for place in places], tmp_path).fit()
    for place in places:
        assert steps(place) == [(0, index) for index in range(1, ROWS + 1)]
    assert sorted(path.name for path in Path(result.path, "trackers").glob("*.json")) == [
        "ledger-2.json",
        "ledger.json",
    ]


def test_the_second_tracker_of_a_kind_is_sent_its_own_rows_later(tmp_path: Path) -> None:
    places = [tmp_path / "first", tmp_path / "second"]
    callbacks = [TrackerCallback(LedgerTracker(place)) for place in places]
    for place, callback in zip(places, callbacks, strict=True):
        place.mkdir()
        (place / "down").touch()
        callback.wait_at_end_s = 0.2
    result = trainer(list(callbacks), tmp_path).fit()
    for place in places:
        (place / "down").unlink()
    (how,) = (each for each in result.warnings if "file=" in each)
    assert f"paceline.trackers.send({result.path!r}, TrackerCallback(...), file='ledger-2')" in how
    assert send(result.path, callbacks[0]) == ROWS
    assert send(result.path, callbacks[1], file="ledger-2") == ROWS
    for place in places:
        assert steps(place) == [(0, index) for index in range(1, ROWS + 1)]


def test_an_interrupted_run_is_closed_as_interrupted(place: Path, tmp_path: Path) -> None:
    arguments = ["ledger", str(place), str(tmp_path / "results"), str(tmp_path / "gate")]
    env = {"PYTHONPATH": str(ROOT)}
    with Driver(["-m", "tests.trackers.climbs", *arguments], output=tmp_path / "out.txt", env=env) as driver:
        wait_for(lambda: runs(place) and len(steps(place)) >= 7, "the rows before the gate")
        driver.send(signal.SIGINT)
        (tmp_path / "gate").touch()
        assert driver.wait() == -signal.SIGINT, driver.text()
    assert read_ledger(place)[0].outcome == "interrupted"


# -- searches


class Watching(Callback):
    """Counts the threads of trackers while trials run."""

    most = 0

    def on_trial_result(self, **info: Any) -> None:
        names = [thread.name for thread in threading.enumerate()]
        self.most = max(self.most, sum(name.startswith("paceline-tracker") for name in names))


def short_climb(config: Mapping[str, Any]) -> None:
    for index in range(2):
        train.report({"height": config["speed"] * index})


def test_a_search_has_a_grouped_run_for_each_trial_and_one_thread_for_all(place: Path, tmp_path: Path) -> None:
    (place / "down").touch()  # nothing leaves, so that all trials wait for the tracker
    watching, callback = Watching(), TrackerCallback(LedgerTracker(place))
    callback.wait_at_end_s = 0.2
    results = tune.Tuner(
        short_climb,
        param_space={"speed": tune.grid_search([*range(8)])},
        run_config=RunConfig(name="all", storage_path=str(tmp_path), callbacks=[callback, watching], verbose=0),
    ).fit()
    assert watching.most == 1
    (place / "down").unlink()
    assert send(results.experiment_path, callback) == 16
    found = read_ledger(place)
    assert sorted(run.config["speed"] for run in found) == [str(speed) for speed in range(8)]
    assert all([row.step for row in run.rows] == [1, 2] and run.outcome == "finished" for run in found)
    assert {told[0]["group"] for told in runs(place).values()} == {"all"}


def test_a_warning_about_the_tracker_of_a_search_appears_once(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "down").touch()
    callback = TrackerCallback(LedgerTracker(place))
    callback.wait_at_end_s = 0.2
    tune.Tuner(
        short_climb,
        param_space={"speed": tune.grid_search([1, 2])},
        run_config=RunConfig(name="all", storage_path=str(tmp_path), callbacks=[callback], verbose=1),
    ).fit()
    shown = "".join(capsys.readouterr()).replace("\n", " ")
    assert shown.count("is not accepting data") == 1
    assert shown.count("paceline.trackers.send(") == 1


class PauseOnce(TrialScheduler):
    """Lets every trial wait after its first row, until all have reported one."""

    paused: ClassVar[set[str]] = set()

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        if trial.trial_id in self.paused:
            return TrialScheduler.CONTINUE
        self.paused.add(trial.trial_id)
        return TrialScheduler.PAUSE


def test_a_trial_that_was_paused_stays_one_run(place: Path, tmp_path: Path) -> None:
    PauseOnce.paused.clear()
    tune.Tuner(
        climb_of_trial,
        param_space={"speed": tune.grid_search([1, 2])},
        tune_config=TuneConfig(scheduler=PauseOnce()),
        run_config=RunConfig(storage_path=str(tmp_path), callbacks=[TrackerCallback(LedgerTracker(place))], verbose=0),
    ).fit()
    assert len(PauseOnce.paused) == 2
    for found in read_ledger(place):
        assert {row.step for row in found.rows} == {1, 2, 3}
        assert found.outcome == "finished"
    assert len(read_ledger(place)) == 2


def climb_of_trial(config: Mapping[str, Any]) -> None:
    climb({"rows": 3})
