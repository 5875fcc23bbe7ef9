"""The driver of an experiment is killed, and Tuner.restore() continues it."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Result
from paceline.testing.invariants import check_no_processes, committed_checkpoints
from paceline.testing.processes import fault
from paceline.testing.scripts import read_state
from paceline.tune import Tuner
from tests.faults.cases import long_run, rounds
from tests.faults.search_programs import TunePlan, make_tuner
from tests.faults.tune_laboratory import TuneLaboratory
from tests.tune.search_invariants import check_finished, created_trials, ended_trials

TRIALS, ITERATIONS = 6, 3
POINTS = {
    "before_journal_append": 74,
    "after_journal_append": 74,
    "before_ack": 18,
    "before_commit_rename": 18,
    "after_commit_rename": 18,
    "before_trash": 6,
    "after_delete": 6,
}
"""Places in the driver, and how often the whole experiment comes by."""
REPORTED = "reported"
"""The driver is killed from outside when the trials have made so many reports."""


def random_death(seed: int) -> tuple[str, int]:
    """Where the driver dies, and at which passing: anywhere from the experiment's creation to its end."""
    rng = random.Random(seed)
    places = {**POINTS, REPORTED: TRIALS * ITERATIONS - 1}
    place = rng.choice(list(places))
    return place, rng.randint(1, places[place])


def configurations(experiment: Path) -> list[Any]:
    return [record["evaluated"] for record in created_trials(experiment).values()]


def uninterrupted(lab: TuneLaboratory, plan: TunePlan) -> list[Any]:
    """The configurations that the same search gives when nothing goes wrong."""
    grid = make_tuner(plan).fit()
    check_finished(grid, trials=TRIALS, iterations=ITERATIONS)
    return configurations(Path(grid.experiment_path))


def kill_and_restore(lab: TuneLaboratory, plan: TunePlan, place: str, times: int) -> bool:
    """Let the driver die, continue in this process, and check; False if the driver came to its end before."""
    with lab.drive(plan, env=fault(place, rank="driver", times=times)) as driver:
        if place == REPORTED:
            lab.marks.wait(REPORTED, times)
            driver.kill()
        killed = driver.wait() == -signal.SIGKILL
        assert killed or lab.outcome()["outcome"] == "finished", driver.text()
        if not any(lab.storage.glob("*/experiment-*.jsonl")) or not Tuner.can_restore(lab.experiment):
            assert lab.marks.read("started") == [], "trials were started before the experiment was written down"
            return killed
        check_no_processes(lab.experiment, driver.known())
    created, ended = created_trials(lab.experiment), ended_trials(lab.experiment)
    known = {trial_id: Result.from_path(str(lab.experiment / created[trial_id]["dir"])).metrics for trial_id in ended}
    promised = {mark["trial"]: mark["iteration"] for mark in lab.marks.read("saved")}
    on_disk = {
        trial_id: max(map(read_state, committed_checkpoints(lab.experiment / record["dir"])), default=0)
        for trial_id, record in created.items()
    }
    starts_before = len(lab.marks.read("started"))

    grid = make_tuner(plan.continued(lab.experiment)).fit()

    check_finished(grid, trials=TRIALS, iterations=ITERATIONS)
    starts = lab.marks.read("started")[starts_before:]
    started = [mark["trial"] for mark in starts]
    assert not ended & set(started), "trials that had ended were run again"
    assert sorted([*ended, *started]) == sorted(created_trials(lab.experiment)), "not every other trial ran once"
    for mark in starts:
        trial_id = mark["trial"]
        assert promised.get(trial_id, 0) <= mark["after"] <= on_disk.get(trial_id, 0), f"{trial_id} lost a checkpoint"
    results = {result.metrics["trial_id"]: result.metrics for result in grid}
    assert {trial_id: results[trial_id]["score"] for trial_id in known} == {
        trial_id: metrics["score"] for trial_id, metrics in known.items()
    }
    return killed


@pytest.mark.parametrize(
    ("searcher", "at_once", "seeds"),
    [
        ("variants", 2, range(1)),
        pytest.param("optuna", 1, range(3, 5), marks=pytest.mark.slow),
        long_run("variants", 2, range(10, 10 + rounds(10)), seconds=300),
        long_run("optuna", 1, range(1000, 1000 + rounds(8)), seconds=300),
    ],
)
def test_experiment_continues_after_a_kill_anywhere(tmp_path: Path, searcher: str, at_once: int, seeds: range) -> None:
    """H2: What Optuna suggests depends on the order in which trials end: with one at a time it is the same again."""
    settings: dict[str, Any] = {"searcher": searcher, "at_once": at_once, "trials": TRIALS, "iterations": ITERATIONS}
    reference = TuneLaboratory(tmp_path / "reference")
    wanted = uninterrupted(reference, reference.plan(**settings))
    killed = 0
    for seed in seeds:
        lab = TuneLaboratory(tmp_path / f"seed_{seed}")
        place, times = random_death(seed)
        try:
            killed += kill_and_restore(lab, lab.plan(**settings), place, times)
            if Tuner.can_restore(lab.experiment):
                assert configurations(lab.experiment) == wanted
        except BaseException as error:
            error.add_note(f"seed {seed}: passing {times} of {place}")
            raise
    assert killed >= 0.8 * len(seeds), f"only {killed} of {len(seeds)} drivers were killed before their end"
