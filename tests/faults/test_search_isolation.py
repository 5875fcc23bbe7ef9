"""One bad trial does not harm the others: it raises, crashes, is killed, hangs, or reports nonsense."""

from __future__ import annotations

import itertools
import math
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig, session
from paceline.air.constants import AUTOFILLED_KEYS
from paceline.air.errors import TrainingFailedError
from paceline.testing.invariants import check_no_processes, check_run
from paceline.testing.scripts import Action
from paceline.tune import ResultGrid, TuneConfig, Tuner
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search import OptunaSearch
from tests.faults.cases import mostly_slow
from tests.faults.search_programs import make_tuner, number_of
from tests.faults.tune_laboratory import TuneLaboratory
from tests.tune.search_invariants import check_finished

TRIALS, ITERATIONS, BAD = 4, 3, 2

DEATHS = {
    "raises": (Action("raise", 2, BAD, "enough"), "exception", "enough"),
    "segfaults": (Action("segfault", 2, BAD), "signal", "SIGSEGV"),
    "is killed": (Action("signal", 2, BAD, int(signal.SIGKILL)), "signal", "SIGKILL"),
    "exits": (Action("exit at once", 2, BAD, 3), "exit", "3"),
    "hangs": (Action("block", 2, BAD), "hang", "hang_timeout_s"),
}


def reported(grid: ResultGrid) -> dict[int, list[dict[str, Any]]]:
    """Every row of every trial, without what differs from run to run: times and process ids."""
    return {
        number_of(outcome.trial.trial_id): [
            {key: value for key, value in row.items() if key not in AUTOFILLED_KEYS and key != "config"}
            for row in outcome.rows()
        ]
        for outcome in grid.outcomes
    }


@pytest.fixture(scope="module")
def good_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What the trials report when none is bad."""
    lab = TuneLaboratory(tmp_path_factory.mktemp("good"))
    grid = make_tuner(lab.plan(trials=TRIALS, iterations=ITERATIONS)).fit()
    check_finished(grid, trials=TRIALS, iterations=ITERATIONS)
    return reported(grid)


@pytest.mark.parametrize("death", mostly_slow(DEATHS, everyday=["raises", "is killed"]))
def test_other_trials_are_as_without_the_bad_one(
    tmp_path: Path, death: str, good_rows: dict[int, list[dict[str, Any]]]
) -> None:
    """H1."""
    action, kind, word = DEATHS[death]
    lab = TuneLaboratory(tmp_path)
    failures = {"hang_timeout_s": 5.0} if death == "hangs" else {}
    grid = make_tuner(lab.plan(action, trials=TRIALS, iterations=ITERATIONS, failures=failures)).fit()
    check_no_processes(lab.experiment)
    assert len(grid) == TRIALS
    (error,) = grid.errors
    assert isinstance(error, TrainingFailedError)
    assert number_of(error.trial_id) == BAD  # type: ignore[attr-defined]
    assert error.root_cause is not None
    assert error.root_cause.kind == kind
    assert word in str(error)
    check_run(grid[BAD].path, error=error, iterations=1, attempts=1)
    rows = reported(grid)
    assert rows.pop(BAD) == good_rows[BAD][:1]
    assert rows == {number: good_rows[number] for number in rows}
    for number in rows:
        check_run(grid[number].path, result=grid[number], iterations=ITERATIONS, attempts=1)


def fails_in_one(config: dict[str, Any]) -> dict[str, Any]:
    if config["x"] == 1:
        raise KeyError("the line of the user")
    return {"score": config["x"]}


def test_error_names_the_users_line(tmp_path: Path) -> None:
    grid = Tuner(
        fails_in_one,
        param_space={"x": tune.grid_search([0, 1, 2])},
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    (error,) = grid.errors
    assert grid.errors == [grid[1].error]
    line = fails_in_one.__code__.co_firstlineno + 2
    assert f'{__file__}", line {line}, in fails_in_one' in error.root_cause.traceback  # type: ignore[attr-defined]
    assert isinstance(error.__cause__, KeyError)
    assert "the line of the user" in Path(grid[1].path, "error.txt").read_text()


def odd_in_one(config: dict[str, Any]) -> None:
    for iteration in (1, 2, 3):
        if config["number"] == 1:
            session.report({"score": math.nan} if config["odd"] == "nan" else {"other": 1.0})
        else:
            session.report({"score": float(config["number"] * iteration)})


@pytest.mark.parametrize(
    ("odd", "rules"),
    mostly_slow(
        itertools.product(["nan", "missing"], ["fifo", "asha", "optuna"]),
        everyday=[("missing", "asha"), ("nan", "optuna")],
    ),
)
def test_trial_without_a_usable_metric_does_not_end_the_search(tmp_path: Path, odd: str, rules: str) -> None:
    """H5: With "max" a NaN could pass for the best, or break a comparison."""
    space: dict[str, Any] = {"number": tune.grid_search([0, 1, 2, 3]), "odd": odd}
    settings: dict[str, Any] = {}
    if rules == "asha":
        settings["scheduler"] = ASHAScheduler(max_t=3, grace_period=1, reduction_factor=2)
    elif rules == "optuna":
        space["number"] = tune.choice([0, 1, 2, 3])
        points = [{"number": number} for number in range(4)]
        settings |= {"num_samples": 6, "search_alg": OptunaSearch(points_to_evaluate=points, seed=1)}
    tuner = Tuner(
        odd_in_one,
        param_space=space,
        tune_config=TuneConfig(metric="score", mode="max", max_concurrent_trials=1, **settings),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    if rules == "optuna":
        with pytest.warns(UserWarning, match="failed.*OptunaSearch"):
            grid = tuner.fit()
    else:
        grid = tuner.fit()
    assert len(grid) == (6 if rules == "optuna" else 4)
    assert not grid.errors
    best = grid.get_best_result()
    assert best.config == {"number": 3, "odd": odd}
    assert best.metrics["score"] == 9.0
