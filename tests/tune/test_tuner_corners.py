"""What rarely happens to a search: processes that die while they wait, schedulers that let nothing run, late ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import tune
from paceline.air import Checkpoint, FailureConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, RestoreError
from paceline.data import from_items
from paceline.data.preprocessor import Preprocessor
from paceline.engine.choose import choose_engine
from paceline.run.trial import Trial
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal import Journal, read
from paceline.storage.lock import RunLock
from paceline.testing.chaos import Marks
from paceline.train import DataParallelTrainer
from paceline.tune import TuneConfig, Tuner
from paceline.tune.experiment.experiment import Experiment
from paceline.tune.experiment.place import ExperimentPlace
from paceline.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Restart
from paceline.tune.search import Searcher
from paceline.tune.stopper import Stopper
from tests.tune.searching import column, tuner


@pytest.fixture(autouse=True)
def two_cpus() -> Iterator[None]:
    paceline.shutdown()
    paceline.init(num_cpus=2)
    yield
    paceline.shutdown()


def report_once(config: dict[str, Any]) -> None:
    session.report({"loss": 1.0})


class FirstWaits(TrialScheduler):
    """The first trial waits after its first row until the second one has ended, which kills its process meanwhile."""

    second_has_ended = False

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        if trial.trial_id.endswith("_00001"):
            first = controller.get_trials()[0]
            if result["training_iteration"] == 1:
                os.kill(first.last_result["pid"], signal.SIGKILL)
            return self.CONTINUE
        return self.PAUSE if result["training_iteration"] == 1 else self.CONTINUE

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> None:
        self.second_has_ended = True

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        ready = [each for each in controller.waiting_trials() if each.status == "PENDING" or self.second_has_ended]
        return ready[0] if ready else None


@pytest.mark.parametrize("retries", [0, 1])
def test_process_that_dies_while_it_waits(tmp_path: Path, retries: int) -> None:
    marks = Marks(tmp_path / "marks")

    def train(config: dict[str, Any]) -> None:
        for step in range(40):  # long enough for the death of the other to be noticed
            marks.say("step", trial=session.get_trial_id())
            session.report({"step": step})

    grid = tuner(
        train,
        num_samples=2,
        max_concurrent_trials=1,
        scheduler=FirstWaits(),
        failure_config=FailureConfig(max_failures=retries),
        storage_path=str(tmp_path),
    ).fit()
    order = [mark["trial"][-1] for mark in marks.read("step")]
    if retries:  # it starts anew when it is its turn, not before
        assert not grid.errors
        assert order == ["0"] + ["1"] * 40 + ["0"] * 40
        assert [column(result, "step") for result in grid] == [list(range(40))] * 2
    else:
        (error,) = grid.errors
        assert "SIGKILL" in str(error)
        assert order == ["0"] + ["1"] * 40


fitting, seen_by_stopper = threading.Event(), threading.Event()


class SlowToFit(Preprocessor):
    """Is not fitted before the end of the search has been decided."""

    def _fit(self, dataset: Any) -> Preprocessor:
        fitting.set()
        assert seen_by_stopper.wait(60)
        return self

    def _transform_numpy(self, batch: Any) -> Any:
        return batch


class StopWhileFitting(Stopper):
    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if fitting.is_set():
            seen_by_stopper.set()
        return fitting.is_set()


def test_trial_whose_data_is_being_prepared_is_stopped_like_the_others(tmp_path: Path) -> None:
    fitting.clear()
    seen_by_stopper.clear()
    marks = Marks(tmp_path / "marks")
    trainer = DataParallelTrainer(
        lambda: marks.say("started"),
        scaling_config=ScalingConfig(num_workers=1),
        datasets={"train": from_items([{"a": 1}])},
        preprocessor=SlowToFit(),
    )
    grid = tuner(trainer, {}, num_samples=1, stop=StopWhileFitting(), storage_path=str(tmp_path)).fit()
    assert not grid.errors
    assert not marks.read("started")


@pytest.mark.parametrize("again", ["resume_errored", "restart_errored"])
@pytest.mark.parametrize("name", ["asha", "pbt"])
def test_failed_trial_that_gets_another_chance_is_known_to_the_scheduler(tmp_path: Path, name: str, again: str) -> None:
    repaired = tmp_path / "repaired"

    def train(config: dict[str, Any]) -> None:
        for step in range(1, 9):
            if step == 5 and not repaired.exists():
                raise ValueError("broken")
            session.report({"loss": 1.0, "enough": int(repaired.exists() and step >= 3)})

    first = tuner(
        train,
        {"lr": tune.choice([1, 2])},
        metric="loss",
        mode="min",
        scheduler=(
            ASHAScheduler()
            if name == "asha"
            else PopulationBasedTraining("training_iteration", hyperparam_mutations={"lr": [1, 2]})
        ),
        stop={"enough": 1},
        storage_path=str(tmp_path / "results"),
    ).fit()
    assert len(first.errors) == 1
    repaired.touch()
    grid = Tuner.restore(
        first.experiment_path,
        train,
        resume_errored=again == "resume_errored",
        restart_errored=again == "restart_errored",
    ).fit()
    assert not grid.errors
    # Without a checkpoint both start anew; of rows that were seen before the failure the criterion is asked again.
    assert grid[0].metrics["training_iteration"] == 3


@pytest.mark.parametrize("name", ["../victim", "..", "{root}/victim"])
def test_restore_touches_nothing_outside_the_experiment(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").touch()
    grid = tuner(report_once, {}, storage_path=str(tmp_path), name="search").fit()
    (path,) = Path(grid.experiment_path).glob("experiment-*.jsonl")
    records = [record for record in read(path) if record["kind"] in ("experiment", "trial")]
    path.unlink()
    forged = Journal(path)
    for record in records:
        forged.append({**record, "dir": name.format(root=tmp_path)})
    forged.close()
    with pytest.raises(RestoreError, match="directory"):
        Tuner.restore(grid.experiment_path, report_once)
    assert [each.name for each in victim.iterdir()] == ["file"]


class NeverChooses(TrialScheduler):
    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        return self.CONTINUE

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        return None


def test_scheduler_that_lets_nothing_run_does_not_hang(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    search = tuner(report_once, {}, num_samples=3, scheduler=NeverChooses(), storage_path=str(tmp_path), verbose=1)
    assert [outcome.metrics for outcome in search.fit().outcomes] == [{}, {}, {}]
    assert "The scheduler lets no trial go on" in "".join(capfd.readouterr())


class HasNothing(Searcher):
    """Suggests nothing for a while, and then that it is done."""

    asked = 0

    def suggest(self, trial_id: str) -> Any:
        self.asked += 1
        return None if self.asked < 4 else self.FINISHED


def test_searcher_that_waits_for_nothing_is_told_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.tune.experiment.starting.IDLE_S", 0.0)
    search = tuner(report_once, {}, num_samples=2, search_alg=HasNothing(), storage_path=str(tmp_path), verbose=1)
    assert len(search.fit()) == 0
    assert "HasNothing suggests nothing" in "".join(capfd.readouterr())


class AllWait(TrialScheduler):
    """Every trial waits after its first row; when all do, they are stopped, or the driver breaks off."""

    def __init__(self, breaks_off: bool) -> None:
        super().__init__()
        self._breaks_off = breaks_off

    @property
    def result_keys(self) -> tuple[str, ...]:
        return ("loss",)

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        return self.PAUSE

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        return next((each for each in controller.waiting_trials() if each.status == "PENDING"), None)

    def on_stall(self, controller: Controller) -> None:
        if self._breaks_off:
            raise RuntimeError("broken off")
        for trial in controller.waiting_trials():
            controller.stop_trial(trial)


def test_trial_that_waited_before_a_restore_and_is_stopped_after_it_has_its_whole_last_row(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        session.report({"loss": 1.0, "accuracy": 0.5})

    search = tuner(train, {}, num_samples=2, scheduler=AllWait(True), storage_path=str(tmp_path), name="search")
    with pytest.raises(RuntimeError, match="broken off"):
        search.fit()
    again = TuneConfig(scheduler=AllWait(False))
    grid = Tuner.restore(tmp_path / "search", train, tune_config=again).fit()
    assert [outcome.metrics["accuracy"] for outcome in grid.outcomes] == [0.5, 0.5]
    stored = Tuner.restore(tmp_path / "search", train, tune_config=again).get_results()
    assert list(stored.get_dataframe()["accuracy"]) == [0.5, 0.5]


def test_values_have_the_same_types_after_a_restore(tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"

    def train(config: dict[str, Any]) -> None:
        if not repaired.exists():
            raise ValueError("broken")
        session.report({"config_text": repr(config)})

    space = {"layers": tune.choice([(1, 2)]), "sizes": {1: 2.5}, "shape": (5, 6)}
    grid = tuner(train, space, storage_path=str(tmp_path / "results")).fit()
    stored = Tuner.restore(grid.experiment_path, train).get_results()
    assert stored.outcomes[0].trial.evaluated_params == {"layers": (1, 2)}
    repaired.touch()
    (result,) = Tuner.restore(grid.experiment_path, train, restart_errored=True).fit()
    assert result.metrics["config_text"] == repr({"layers": (1, 2), "sizes": {1: 2.5}, "shape": (5, 6)})


def test_store_that_is_away_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = tuner(report_once, {}, storage_path=str(tmp_path / "here")).fit()
    records = list(Path(grid.experiment_path).glob("experiment-*.jsonl"))
    plan = Tuner.restore(grid.experiment_path, report_once)._restoration.plan  # type: ignore[union-attr]
    identity = next(read(records[0]))["id"]
    away = ExperimentPlace(Path(grid.experiment_path), "search", identity, "memory://bucket/search")
    monkeypatch.setattr(FsspecFilesystem, "check", unreachable)
    with pytest.raises(OSError, match="unreachable"):
        Experiment(plan, choose_engine(None), away)
    with RunLock(away.lock):
        pass


def unreachable(store: FsspecFilesystem) -> None:
    raise OSError("unreachable")


class HandsOver(AllWait):
    """When all wait, the first takes over from the second; the driver breaks off before it is carried out."""

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        return super().choose_trial_to_run(controller) if self._breaks_off else first_that_waits(controller)

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        return self.PAUSE if result["training_iteration"] == 1 else self.CONTINUE

    def on_stall(self, controller: Controller) -> None:
        if self._breaks_off:
            taker, giver = controller.get_trials()
            controller.restart_trial(taker, Restart({"train_loop_config": {"x": 3}}, giver))
            raise RuntimeError("broken off")


def first_that_waits(controller: Controller) -> Trial | None:
    return next(iter(controller.waiting_trials()), None)


def test_takeover_of_a_trial_with_datasets_survives_the_driver(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        weights = checkpoint.to_dict()["weights"] if checkpoint else config["x"]
        for _ in range(2 if checkpoint is None else 1):
            saved = Checkpoint.from_dict({"weights": weights})
            session.report({"loss": 1.0, "weights": weights, "x": config["x"]}, checkpoint=saved)

    trainer = DataParallelTrainer(
        train, scaling_config=ScalingConfig(num_workers=1), datasets={"train": from_items([{"a": 1}])}
    )
    space = {"train_loop_config": {"x": tune.grid_search([1, 2])}}
    search = tuner(trainer, space, scheduler=HandsOver(True), storage_path=str(tmp_path), name="search")
    with pytest.raises(RuntimeError, match="broken off"):
        search.fit()
    again = TuneConfig(scheduler=HandsOver(False))
    grid = Tuner.restore(tmp_path / "search", trainer, tune_config=again).fit()
    assert not grid.errors
    assert [(result.metrics["x"], result.metrics["weights"]) for result in grid] == [(3, 2), (2, 2)]


@pytest.mark.parametrize("choice", ["the second one", None])
def test_a_scheduler_that_chooses_what_is_no_waiting_trial_is_told(tmp_path: Path, choice: str | None) -> None:
    class Chooses(FIFOScheduler):
        def choose_trial_to_run(self, controller: Controller) -> Any:
            return choice or Trial("4913f_00000", "other", str(tmp_path), "4913f")

    with pytest.raises(ConfigError, match=r"Chooses\.choose_trial_to_run\(\) returned .*: return one of"):
        tuner(report_once, {}, scheduler=Chooses(), storage_path=str(tmp_path)).fit()
