"""Trials that are paused, and trials that go on from another's weights."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import Checkpoint, CheckpointConfig, RunConfig
from paceline.run.checkpoint_background import Commit
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.spec import Trial
from paceline.testing.invariants import check_no_processes, check_run, committed_checkpoints, journal_records
from paceline.testing.processes import Driver, Marks, fault, wait_for
from paceline.tune import ResultGrid, TuneConfig, Tuner
from paceline.tune.schedulers import FIFOScheduler, PopulationBasedTraining
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Restart
from tests.faults.cases import long_run, mostly_slow
from tests.tune.growing import grow
from tests.tune.search_invariants import experiment_records

STEPS = 8
RATES = [1.0, 2.0, 3.0, 4.0]


def population(root: Path, every: int = 1, keep: int | None = None, **settings: Any) -> Tuner:
    return Tuner(
        grow,
        param_space={"rate": tune.grid_search(RATES), "marks": str(root / "marks"), "every": every},
        tune_config=TuneConfig(
            **{
                "metric": "score",
                "mode": "max",
                "scheduler": PopulationBasedTraining(
                    time_attr="training_iteration",
                    perturbation_interval=2,
                    hyperparam_mutations={"rate": tune.uniform(1, 4)},
                    resample_probability=0.0,
                ),
                **settings,
            }
        ),
        run_config=RunConfig(
            name="population",
            storage_path=str(root / "storage"),
            stop={"training_iteration": STEPS},
            checkpoint_config=CheckpointConfig(num_to_keep=keep),
            verbose=0,
        ),
    )


def weights_of(checkpoint: Path) -> list[int]:
    weights: list[int] = Checkpoint.from_directory(str(checkpoint)).to_dict()["weights"]
    return weights


def copies(trial_dir: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The checkpoints that the trial took over, with what their manifests say."""
    found = [
        (path, json.loads((path / "MANIFEST.json").read_text())["facts"]) for path in committed_checkpoints(trial_dir)
    ]
    return [(path, facts) for path, facts in found if "copied_from" in facts]


def check_population(grid: ResultGrid) -> None:
    """Every trial made all its steps, in one row of numbers."""
    assert not grid.errors
    assert len(grid) == len(RATES)
    for result in grid:
        check_run(result.path, result=result, iterations=STEPS)


def test_exploited_weights_are_the_donors(tmp_path: Path) -> None:
    grid = population(tmp_path).fit()
    check_population(grid)
    root = Path(grid.experiment_path)
    records = experiment_records(root)
    names = {record["n"]: record["dir"] for record in records if record["kind"] == "trial"}
    takeovers = [record for record in records if record["kind"] == "restart"]
    assert takeovers, "nobody was bad enough"
    taken = {name: copies(root / name) for name in names.values()}
    assert sum(map(len, taken.values())) == len(takeovers)
    starts = Marks(tmp_path / "marks").read("started")
    for record in takeovers:
        path, facts = taken[names[record["n"]]].pop(0)
        donor = root / names[record["donor"]]
        assert facts["copied_from"] == donor.name
        weights = weights_of(path)
        assert weights in [weights_of(other) for other in committed_checkpoints(donor)]
        assert [mark for mark in starts if mark["trial"] == record["n"] and mark["weights"] == weights], (
            "the trial did not go on from the donor's weights"
        )
        assert facts["iteration"] % 2 == 0, "the trial's own count of iterations goes on"
    for number, outcome in enumerate(grid.outcomes):
        rows = list(outcome.rows())
        assert [row["training_iteration"] for row in rows] == list(range(1, STEPS + 1))
        own = [record for record in takeovers if record["n"] == number]
        assert outcome.trial.config["rate"] == (own[-1]["config"]["rate"] if own else RATES[number])
        assert all(row["weights"][-1] == number for row in rows)
        assert outcome.result.checkpoint is not None
        assert outcome.result.checkpoint.to_dict()["weights"] == rows[-1]["weights"]


def test_donor_keeps_a_checkpoint_until_it_is_copied(tmp_path: Path) -> None:
    """Each trial keeps one checkpoint only, and the donors go on and replace theirs."""
    grid = population(tmp_path, keep=1).fit()
    check_population(grid)
    takeovers = [record for record in experiment_records(grid.experiment_path) if record["kind"] == "restart"]
    copied = [
        mark
        for mark in Marks(tmp_path / "marks").read("started")
        if mark["weights"] and mark["weights"][-1] != mark["trial"]
    ]
    assert len(copied) == len(takeovers) > 0


def test_donor_that_ends_before_it_is_copied_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy begins when its donor has ended, and the checkpoint that it needs is not among those kept."""
    adopt = CheckpointKeeper.adopt
    awaited: list[Path] = []

    def adopt_later(keeper: CheckpointKeeper, checkpoint: Checkpoint, *given: Any) -> Commit:
        if not awaited:
            awaited.append(donor := Path(str(checkpoint.path)).parent)
            wait_for(lambda: "end" in [record["kind"] for record in journal_records(donor)], "the donor's end")
        return adopt(keeper, checkpoint, *given)

    monkeypatch.setattr(CheckpointKeeper, "adopt", adopt_later)
    grid = population(tmp_path, keep=1).fit()
    assert awaited, "nobody was bad enough"
    check_population(grid)


class PauseAfterEachRow(FIFOScheduler):
    """Trials take turns of one row."""

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        return self.PAUSE

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        """New trials first, then whoever has waited longest."""
        waiting = controller.waiting_trials()
        pending = [trial for trial in waiting if trial.status == "PENDING"]
        if not pending and controller.expects_more_trials:
            return None
        return next(iter(pending or waiting), None)


@pytest.mark.parametrize(
    ("every", "most_waiting"), mostly_slow([(1, 16), (1, 0), (2, 0), (100, 0)], everyday=[(1, 16), (2, 0)])
)
def test_paused_trial_goes_on_from_that_very_row(
    tmp_path: Path, every: int, most_waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H8: Its process waits. Where too many would, one with a checkpoint of the row ends, and a new one takes it up."""
    monkeypatch.setattr("paceline.tune.experiment.deciding.MOST_WAITING", most_waiting)
    grid = population(tmp_path, every, scheduler=PauseAfterEachRow(), max_concurrent_trials=1).fit()
    check_population(grid)
    marks = Marks(tmp_path / "marks")
    for number in range(len(RATES)):
        assert grid[number].metrics["weights"] == [number] * STEPS
        starts = [len(mark["weights"]) for mark in marks.read("started", trial=number)]
        expected = [0] if most_waiting else list(range(0, STEPS, every))
        assert starts == expected, "a checkpoint was lost, or a process ended without need"
    order = [record["n"] for record in experiment_records(grid.experiment_path) if record["kind"] == "row"]
    assert order == [number for _ in range(STEPS) for number in range(len(RATES))], "they did not take turns"


class FailWhileOneWaits(FIFOScheduler):
    """The first trial waits to take over what the second has after two rows. Fails when that has ended."""

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        first, *_ = controller.get_trials()
        if trial is first:
            return self.PAUSE
        if result["training_iteration"] == 2:
            controller.restart_trial(first, Restart(donor=trial))
        return self.CONTINUE

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        return next((trial for trial in controller.waiting_trials() if trial.status == "PENDING"), None)

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Mapping[str, Any] | None) -> None:
        raise LookupError("the scheduler is wrong")


def test_search_that_fails_keeps_no_checkpoint_for_those_who_wait(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="the scheduler is wrong"):
        population(tmp_path, keep=1, scheduler=FailWhileOneWaits(), max_concurrent_trials=1).fit()
    _, donor, *_ = sorted(path for path in (tmp_path / "storage" / "population").iterdir() if path.is_dir())
    assert [path.name for path in committed_checkpoints(donor)] == [f"checkpoint_{STEPS - 1:06}"]


class KillPaused(PauseAfterEachRow):
    """Kills the process of the first trial while that waits after its third row."""

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        first = controller.get_trials()[0]
        if trial.trial_id.endswith("_00001") and result["training_iteration"] == 3:
            assert first.status == "PAUSED"
            os.kill(first.last_result["pid"], signal.SIGKILL)
        return self.PAUSE


def test_death_of_a_paused_trial_is_its_own(tmp_path: Path) -> None:
    grid = population(tmp_path, 100, scheduler=KillPaused(), max_concurrent_trials=1).fit()
    (error,) = grid.errors
    assert error.trial_id.endswith("_00000")  # type: ignore[attr-defined]
    assert "SIGKILL" in str(error)
    check_no_processes(Path(grid.experiment_path))
    for result in list(grid)[1:]:
        check_run(result.path, result=result, iterations=STEPS, attempts=1)


POINTS = [
    ("before_stage_create", 1),  # the driver itself stages only what it copies from a donor
    ("after_stage_manifest", 1),
    ("after_commit_rename", 9),
    ("after_journal_append", 60),
]
MORE_POINTS = [
    *[(point, times) for point in ("before_commit_rename", "after_commit_rename", "before_ack") for times in (6, 12)],
    *[("before_journal_append", times) for times in range(10, 80, 7)],
]


@pytest.mark.parametrize(
    ("point", "times"),
    [
        *mostly_slow(POINTS, everyday=[("after_stage_manifest", 1)]),
        *(long_run(*point) for point in MORE_POINTS),
    ],
)
def test_population_goes_on_after_the_death_of_its_driver(tmp_path: Path, point: str, times: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            from pathlib import Path
            from tests.faults.test_search_handover import population
            population(Path(sys.argv[1])).fit()
        """)
    )
    here = str(Path(__file__).parents[2])
    env = {**fault(point, rank="driver", times=times), "PYTHONPATH": here}
    with Driver([str(script), str(tmp_path)], output=tmp_path / "driver.txt", env=env) as driver:
        assert driver.wait() == -signal.SIGKILL, driver.text()
    grid = Tuner.restore(tmp_path / "storage" / "population", grow).fit()
    check_population(grid)
    for record in experiment_records(grid.experiment_path):
        if record["kind"] == "restart":
            assert_handed_over(Path(grid.experiment_path), record)


def assert_handed_over(root: Path, takeover: dict[str, Any]) -> None:
    names = {record["n"]: record["dir"] for record in experiment_records(root) if record["kind"] == "trial"}
    donors = [facts["copied_from"] for _, facts in copies(root / names[takeover["n"]])]
    assert names[takeover["donor"]] in donors, f"{takeover} was written down and not carried out"
