"""The contract of schedulers: every built-in one keeps it, and what the base class itself promises."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline.air import Checkpoint, session
from paceline.air.errors import ConfigError
from paceline.run.spec import Trial
from paceline.testing.scheduler_contract import SchedulerContract, recorded_curves
from paceline.testing.scheduler_simulation import SchedulerSimulation
from paceline.tune import grid_search, schedulers
from paceline.tune.schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    TrialScheduler,
    create_scheduler,
)
from paceline.tune.schedulers.trial_scheduler import Controller
from tests.tune.schedulers.population import new_trial
from tests.tune.searching import search


class TestFIFO(SchedulerContract):
    def make_scheduler(self) -> TrialScheduler:
        return FIFOScheduler()


class TestASHA(SchedulerContract):
    def make_scheduler(self) -> TrialScheduler:
        return ASHAScheduler(max_t=25, grace_period=2, reduction_factor=3, brackets=2)


class TestHyperBand(SchedulerContract):
    def make_scheduler(self) -> TrialScheduler:
        return HyperBandScheduler(max_t=9)


class TestHyperBandThatRunsOn(SchedulerContract):
    def make_scheduler(self) -> TrialScheduler:
        return HyperBandScheduler(max_t=9, stop_last_trials=False)


class TestMedianStopping(SchedulerContract):
    def make_scheduler(self) -> TrialScheduler:
        return MedianStoppingRule(grace_period=6)


class TestMedianPausing(SchedulerContract):
    def make_scheduler(self) -> TrialScheduler:
        return MedianStoppingRule(grace_period=6, min_time_slice=8, hard_stop=False)


def test_fifo_runs_each_trial_to_its_end_in_order() -> None:
    simulation = SchedulerSimulation(FIFOScheduler(), recorded_curves(0, count=6), slots=1).run()
    assert list(simulation.ended.items()) == [(number, "complete") for number in range(6)]
    assert set(simulation.rows_taken.values()) == {30}


def test_fifo_asks_for_no_rows_but_a_subclass_that_looks_at_them_gets_all() -> None:
    class Impatient(FIFOScheduler):
        def on_trial_result(self, controller: Any, trial: Trial, result: Any) -> Any:
            return self.STOP if result["training_iteration"] >= 2 else self.CONTINUE

    assert not FIFOScheduler().decides
    assert FIFOScheduler().result_keys == ()
    assert Impatient().decides
    assert Impatient().result_keys is None
    simulation = SchedulerSimulation(Impatient(), recorded_curves(0, count=3)).run()
    assert set(simulation.rows_taken.values()) == {2}


class StopsTheFirstAndTheLast(TrialScheduler):
    """The first of three trials while it is paused, and the last before it has started."""

    heard: ClassVar[list[tuple[str, int]]] = []

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        self.heard.append(("add", trial.config["number"]))
        if trial.config["number"] == 2:
            controller.stop_trial(trial)
            self.heard.append(("added", trial.config["number"]))

    def on_trial_result(self, controller: Controller, trial: Trial, result: Any) -> str:
        self.heard.append(("row", trial.config["number"]))
        if trial.config["number"] == 0:
            return self.PAUSE
        (first,) = controller.waiting_trials()
        controller.stop_trial(first)
        assert controller.waiting_trials() == []
        self.heard.append(("decided", trial.config["number"]))
        return self.CONTINUE

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        return next((trial for trial in controller.waiting_trials() if trial.status == "PENDING"), None)

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Any) -> None:
        self.heard.append(("complete", trial.config["number"]))

    def on_trial_remove(self, controller: Controller, trial: Trial) -> None:
        self.heard.append(("remove", trial.config["number"]))


@pytest.mark.parametrize("where", ["simulation", "experiment"])
def test_a_simulation_stops_trials_as_an_experiment_does(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the scheduler has decided, and with the same hooks."""
    heard: list[tuple[str, int]] = []
    monkeypatch.setattr(StopsTheFirstAndTheLast, "heard", heard)
    if where == "simulation":
        SchedulerSimulation(StopsTheFirstAndTheLast(), [[{"score": 1}]] * 3, slots=1).run()
    else:
        search(one_row, {"number": grid_search([0, 1, 2])}, scheduler=StopsTheFirstAndTheLast(), engine="inline")
    hooks = {number: [hook for hook, trial in heard if trial == number] for number in range(3)}
    assert hooks == {
        0: ["add", "row", "complete"],
        1: ["add", "row", "decided", "complete"],
        2: ["add", "added", "remove"],
    }
    assert heard[heard.index(("row", 1)) + 1] == ("decided", 1), "nothing is called while it decides"


def one_row(config: dict[str, Any]) -> None:
    session.report({"score": 1}, checkpoint=Checkpoint.from_dict({}))


@pytest.mark.parametrize("kind", [ASHAScheduler, HyperBandScheduler, MedianStoppingRule])
def test_without_a_metric_or_a_mode_it_is_said_before_anything_runs(kind: type[TrialScheduler]) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.__name__}.*no metric\b"):
        kind().set_search_properties(None, None)
    with pytest.raises(ConfigError, match=r"no mode\b.*mode='max'"):
        kind().set_search_properties("loss", None)
    with pytest.raises(ConfigError, match=r"no metric\b.*TuneConfig"):
        kind(mode="min").set_search_properties(None, None)


@pytest.mark.parametrize("kind", [ASHAScheduler, HyperBandScheduler, MedianStoppingRule])
def test_its_own_metric_wins_nothing_and_contradicts_nothing(kind: type[TrialScheduler]) -> None:
    scheduler = kind(metric="loss", mode="min")
    assert scheduler.set_search_properties(None, None)
    assert scheduler.set_search_properties("loss", "min")
    assert not scheduler.set_search_properties("accuracy", None)
    assert not scheduler.set_search_properties(None, "max")
    assert (scheduler.metric, scheduler.mode) == ("loss", "min")
    assert scheduler.result_keys is not None
    assert "loss" in scheduler.result_keys


def test_a_scheduler_without_its_one_method_says_so() -> None:
    class Empty(TrialScheduler):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty.*on_trial_result"):
        SchedulerSimulation(Empty(), recorded_curves(0, count=1)).run()


def test_only_trials_that_fit_are_chosen() -> None:
    class Small(SchedulerSimulation):
        def has_resources_for(self, trial: Trial) -> bool:
            return trial.trial_id.endswith("2")

    simulation = Small(FIFOScheduler(), recorded_curves(0, count=3))
    for number in range(3):
        assert FIFOScheduler().choose_trial_to_run(simulation) is None
        simulation.trials.append(new_trial(number, {}))
    assert FIFOScheduler().choose_trial_to_run(simulation) is simulation.trials[2]


@pytest.mark.parametrize(
    ("name", "kind", "arguments"),
    [
        ("fifo", FIFOScheduler, {}),
        ("asha", ASHAScheduler, {"max_t": 7}),
        ("async_hyperband", AsyncHyperBandScheduler, {}),
        ("AsyncHyperBand", AsyncHyperBandScheduler, {}),
        ("hyperband", HyperBandScheduler, {"metric": "loss"}),
        ("median_stopping_rule", MedianStoppingRule, {"hard_stop": False}),
        ("medianstopping", MedianStoppingRule, {}),
    ],
)
def test_by_name(name: str, kind: type[TrialScheduler], arguments: dict[str, Any]) -> None:
    scheduler = create_scheduler(name, **arguments)
    assert type(scheduler) is kind
    assert scheduler.metric == arguments.get("metric")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"hyperband\?"):
        create_scheduler("hyperbnd")


def test_every_public_name_can_be_had_from_here_and_from_its_old_path() -> None:
    for name in schedulers.__all__:
        assert getattr(schedulers, name) is not None
    for module, name in (
        ("async_hyperband", "ASHAScheduler"),
        ("async_hyperband", "AsyncHyperBandScheduler"),
        ("hyperband", "HyperBandScheduler"),
        ("median_stopping_rule", "MedianStoppingRule"),
        ("trial_scheduler", "TrialScheduler"),
    ):
        home = importlib.import_module(f"paceline.tune.schedulers.{module}")
        assert getattr(home, name) is getattr(schedulers, name)
    with pytest.raises(AttributeError, match="'Nothing'"):
        _ = schedulers.Nothing


def test_the_half_of_bohb_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"OptunaSearch\(\), scheduler=HyperBandScheduler\(\)"):
        from paceline.tune.schedulers import HyperBandForBOHB
    with pytest.raises(ImportError, match="TuneBOHB"):
        from paceline.tune.schedulers.hb_bohb import HyperBandForBOHB  # noqa: F401
    with pytest.raises(ImportError, match="TuneBOHB"):
        create_scheduler("hb_bohb")


def test_importing_schedulers_stays_cheap(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from paceline.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule, FIFOScheduler\n"
        "print([name for name in ('numpy', 'pandas', 'torch', 'sklearn', 'optuna') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_scheduler_of_ones_own_need_not_call_the_init_of_the_base() -> None:
    class Patient(FIFOScheduler):
        def __init__(self) -> None:
            self.rows = 0

    assert Patient().set_search_properties("loss", "min")
    with pytest.raises(ConfigError, match=r"scheduler.*\b3\b"):
        create_scheduler(3)  # type: ignore[arg-type]


def test_a_metric_that_is_text_is_told_at_the_first_row() -> None:
    scheduler = ASHAScheduler(metric="loss", mode="min")
    with pytest.warns(UserWarning, match=r"Scheduler.*'loss'.*text.*'0\.5'") as told:
        assert [scheduler.score_of({"loss": value}) for value in ("0.5", "0.4", None)] == [None] * 3
    assert len(told) == 1


def test_what_a_scheduler_changes_can_be_asked_for() -> None:
    changes = {"lr": [0.1, 0.2]}
    population = schedulers.PopulationBasedTraining(metric="loss", mode="min", hyperparam_mutations=changes)
    assert population.changed_parameters == changes
    assert schedulers.ResourceChangingScheduler(population).changed_parameters == changes
    assert set(schedulers.PB2(metric="loss", mode="min", hyperparam_bounds={"lr": [0.1, 1]}).changed_parameters) == {
        "lr"
    }
    assert ASHAScheduler().changed_parameters == {}
