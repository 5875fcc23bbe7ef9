"""What a scheduler had decided when the driver ended holds after a restore."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
from paceline.data import from_items
from paceline.run.spec import Trial
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer
from paceline.tune import TuneConfig, Tuner, grid_search
from paceline.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Restart, TrialScheduler
from tests.tune.interrupting import Bench, drop_from
from tests.tune.search_invariants import experiment_journal
from tests.tune.searching import tuner

pytestmark = pytest.mark.usefixtures("two_cpus")


# -- changed configurations -------------------------------------------------------------------


class Kind:
    """Has no plain form."""


class ChangesFirst(TrialScheduler):
    """The first trial gets another x: at once after its first row, or when all wait. Then the driver breaks off."""

    def __init__(self, when: str, breaks_off: bool, **more: Any) -> None:
        super().__init__()
        self._when = when
        self._breaks_off = breaks_off
        self._more = more

    @property
    def result_keys(self) -> tuple[str, ...]:
        return ("x",)

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        first = trial is controller.get_trials()[0]
        if result["training_iteration"] == 1:
            if self._when == "stall":
                return self.PAUSE
            return self._change(trial) if first else self.CONTINUE
        if first and self._breaks_off:
            raise RuntimeError("broken off")
        return self.CONTINUE

    def _change(self, trial: Trial) -> Restart:
        return Restart({**trial.config, "x": 7, "added": {"y": 8}, **self._more})

    def on_stall(self, controller: Controller) -> None:
        if self._breaks_off:
            controller.restart_trial(controller.get_trials()[0], self._change(controller.get_trials()[0]))
            raise RuntimeError("broken off")

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        states = ("PENDING",) if self._when == "stall" and self._breaks_off else ("PENDING", "PAUSED")
        return next((each for each in controller.waiting_trials() if each.status in states), None)


def three_rows(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    for step in range(checkpoint.to_dict()["step"] if checkpoint else 0, 3):
        row = {"x": config["x"], "y": config.get("added", {}).get("y"), "kind": config["kind"].__name__}
        session.report(row, checkpoint=Checkpoint.from_dict({"step": step + 1}))


def changed_and_broken_off(place: Path, when: str, **more: Any) -> dict[str, Any]:
    """The space of a search that broke off when its scheduler had changed the first trial."""
    space = {"kind": Kind, "x": grid_search([1, 2])}
    scheduler = ChangesFirst(when, True, **more)
    search = tuner(
        three_rows,
        space,
        scheduler=scheduler,
        max_concurrent_trials=1,
        engine="inline",
        storage_path=str(place),
        name="search",
    )
    with pytest.raises(RuntimeError, match="broken off"):
        search.fit()
    return space


@pytest.mark.parametrize("when", ["row", "stall"])
def test_changed_configuration_survives_the_driver_whatever_is_in_it(tmp_path: Path, when: str) -> None:
    space = changed_and_broken_off(tmp_path, when)
    settings = TuneConfig(scheduler=ChangesFirst(when, False))
    search = Tuner.restore(tmp_path / "search", three_rows, param_space=space, tune_config=settings)
    if when == "row":
        assert search.get_results().outcomes[0].trial.config == {"x": 7, "added": {"y": 8}}
    grid = search.fit()
    assert not grid.errors
    last = [(result.metrics["x"], result.metrics["y"], result.metrics["kind"]) for result in grid]
    assert last == [(7, 8, "Kind"), (2, None, "Kind")]
    assert grid.outcomes[0].trial.config == {"kind": Kind, "x": 7, "added": {"y": 8}}


def test_change_that_could_not_be_written_down_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    space = changed_and_broken_off(tmp_path, "row", kind=Bench)
    capfd.readouterr()
    settings = TuneConfig(scheduler=ChangesFirst("row", False))
    grid = Tuner.restore(
        tmp_path / "search", three_rows, param_space=space, tune_config=settings, run_config=RunConfig(verbose=1)
    ).fit()
    assert not grid.errors
    assert grid[0].metrics["kind"] == "Kind"
    told = " ".join("".join(capfd.readouterr()).split())
    assert re.search("keeps the parameters.*'kind'", told)


# -- waiting and stopped trials ---------------------------------------------------------------


class StopsOthers(TrialScheduler):
    """The second trial waits after its row, and is stopped at the end of the first; there the driver breaks off."""

    def __init__(self, marks: Marks, breaks_off: bool) -> None:
        super().__init__()
        self._marks = marks
        self._breaks_off = breaks_off

    def __deepcopy__(self, memo: Any) -> StopsOthers:
        return StopsOthers(self._marks, self._breaks_off)

    @property
    def result_keys(self) -> tuple[str, ...]:
        return ("x",)

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        if result["x"] == 1:
            return self.CONTINUE
        self._marks.say("waits")
        return self.PAUSE

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        return next((each for each in controller.waiting_trials() if each.status == "PENDING"), None)

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> None:
        if self._breaks_off:
            raise RuntimeError("broken off")
        for each in controller.waiting_trials():
            controller.stop_trial(each)


def test_trial_that_is_stopped_by_an_end_that_was_not_written_down_keeps_its_rows(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")

    def train(config: dict[str, Any]) -> None:
        if config["x"] == 1:
            marks.wait("waits", 1)
        session.report({"x": config["x"], "accuracy": 0.5})

    space = {"x": grid_search([1, 2])}
    search = tuner(train, space, scheduler=StopsOthers(marks, True), storage_path=str(tmp_path), name="search")
    with pytest.raises(RuntimeError, match="broken off"):
        search.fit()
    journal = experiment_journal(tmp_path / "search")
    drop_from(journal, kind="end")
    settings = TuneConfig(scheduler=StopsOthers(marks, False))
    grid = Tuner.restore(tmp_path / "search", train, tune_config=settings).fit()
    assert [outcome.status for outcome in grid.outcomes] == ["finished", "finished"]
    assert [outcome.metrics["accuracy"] for outcome in grid.outcomes] == [0.5, 0.5]
    assert [len(list(outcome.rows())) for outcome in grid.outcomes] == [1, 1]


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


# -- failed trials --------------------------------------------------------------------------------


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
    # Without a checkpoint both start from scratch, and the criterion sees the rows before the failure again.
    assert grid[0].metrics["training_iteration"] == 3
