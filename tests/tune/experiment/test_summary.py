"""What a search's journal says of it in one struct."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig, session
from paceline.air.errors import RestoreError
from paceline.run.found_runs import RunSummary
from paceline.storage.lock import RunLock
from paceline.tune import TuneConfig, Tuner
from paceline.tune.experiment.summary import experiment_summary_of
from tests.tune.test_old_journals import ENDS, SEARCHES


def objective(config: dict[str, Any]) -> None:
    for step in (1, 2):
        session.report({"score": config["x"] * step, "eval": {"loss": 1.0}})
        if config["x"] == 2:
            raise ValueError("two is too much")


@pytest.fixture
def search(tmp_path: Path) -> Path:
    run_config = RunConfig(name="search", storage_path=str(tmp_path), verbose=0, engine="inline")
    settings = TuneConfig(metric="score", mode="max", max_concurrent_trials=1)
    space = {"x": tune.grid_search([1, 3, 2])}
    return Path(Tuner(objective, param_space=space, tune_config=settings, run_config=run_config).fit().experiment_path)


def test_a_finished_search(search: Path) -> None:
    summary = experiment_summary_of(search)
    assert (summary.status, summary.alive, summary.name, summary.trainable) == (
        "finished",
        False,
        "search",
        "objective",
    )
    assert summary.ended is not None
    assert 0 < summary.started <= summary.ended
    assert [(trial.number, trial.params, trial.status) for trial in summary.trials] == [
        (0, {"x": 1}, "finished"), (1, {"x": 3}, "finished"), (2, {"x": 2}, "failed")
    ]  # fmt: skip
    first, best, failed = summary.trials
    assert summary.best is best
    assert isinstance(first, RunSummary)
    assert (first.reached.iteration, first.reached.metrics) == (2, {"score": 2, "eval": {"loss": 1.0}})
    assert first.reached.time_total_s > 0
    assert "two is too much" in failed.error


def test_a_search_knows_how_many_trials_there_will_be(search: Path) -> None:
    (journal,) = search.glob("experiment-*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    second = next(place for place, line in enumerate(lines) if b'{"kind":"trial","n":1' in line)
    journal.write_bytes(b"".join(lines[:second]))
    killed = experiment_summary_of(search)
    assert (killed.status, len(killed.trials), killed.total, killed.total_trials) == ("killed", 1, 3, 3)
    Tuner.restore(search, objective, num_samples=2).fit()
    assert experiment_summary_of(search).total == 6


def test_a_search_without_end_has_no_total_until_it_is_over(tmp_path: Path) -> None:
    run_config = RunConfig(name="endless", storage_path=str(tmp_path), verbose=0, engine="inline")
    settings = TuneConfig(num_samples=-1, time_budget_s=0.2, max_concurrent_trials=1)
    Tuner(objective, param_space={"x": tune.uniform(0, 1)}, tune_config=settings, run_config=run_config).fit()
    summary = experiment_summary_of(tmp_path / "endless")
    assert summary.total is None
    assert summary.total_trials == (len(summary.trials) if summary.status == "finished" else None)


def test_trials_of_a_finished_search_are_not_looked_at(search: Path) -> None:
    before = experiment_summary_of(search)
    for trial in before.trials:
        shutil.rmtree(trial.path)
    assert experiment_summary_of(search) == before


def without_ends(search: Path) -> None:
    (journal,) = search.glob("experiment-*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    gone = (b'{"kind":"end","n":2', b'{"kind":"finish"')
    journal.write_bytes(b"".join(line for line in lines if not any(mark in line for mark in gone)))


def test_a_trial_of_which_no_end_is_recorded_is_asked_itself(search: Path) -> None:
    without_ends(search)
    summary = experiment_summary_of(search)
    assert (summary.status, summary.ended) == ("killed", None)
    assert summary.trials[2].status == "failed"
    assert summary.trials[2].reached.iteration == 1
    shutil.rmtree(summary.trials[2].path)
    assert experiment_summary_of(search).trials[2].status == "pending"


def test_a_search_that_is_held_is_running(search: Path) -> None:
    without_ends(search)
    (journal,) = search.glob("experiment-*.jsonl")
    with RunLock(journal.with_suffix(".lock")):
        assert experiment_summary_of(search).status == "running"


@pytest.mark.parametrize("name", ENDS)
def test_searches_of_earlier_versions(name: str) -> None:
    summary = experiment_summary_of(SEARCHES / name)
    reached = [trial.reached for trial in summary.trials]
    ends = [
        (trial.status, round(reached.metrics["score"], 5), reached.iteration)
        for trial, reached in zip(summary.trials, reached, strict=True)
    ]
    if name == "search_pbt":  # the last trial took over a state after its last row, with what had been reported then
        assert ends[2] == ("finished", 3.78156, 6)
        ends[2] = ENDS[name][2]
    assert ends == ENDS[name]
    assert summary.total is None
    scores = [score for _, score, _ in ends]
    assert summary.best is not None
    assert summary.best.number == scores.index(max(scores))
    if name not in ("search_pbt", "search_torn"):  # whose trials have changed since their last rows
        for trial in summary.trials:
            score = trial.reached.metrics["score"] / trial.reached.iteration
            assert trial.params["x"] == pytest.approx(score)


def test_a_place_without_a_search(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="does not hold a search"):
        experiment_summary_of(tmp_path)
