"""Tuner.restore(): what it continues, what it leaves alone, and which experiment it finds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig, session
from paceline.air.errors import ConfigError, RestoreError, RunLockedError
from paceline.run.spec import Trial
from paceline.tune import Callback, TuneConfig, Tuner
from paceline.tune.schedulers import FIFOScheduler
from paceline.tune.schedulers.trial_scheduler import Controller
from paceline.tune.search import BasicVariantGenerator, ConcurrencyLimiter, OptunaSearch
from tests.tune.counting import count, one_row, renamed_count
from tests.tune.interrupting import Bench, InterruptAt, drop_from, facts
from tests.tune.search_invariants import created_trials, experiment_records
from tests.tune.searching import tuner


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_finished_experiment_is_as_it_was_and_runs_nothing(bench: Bench) -> None:
    grid = bench.tuner().fit()
    before = bench.starts()
    restored = Tuner.restore(grid.experiment_path, count)
    assert facts(restored.get_results()) == facts(grid)
    again = restored.fit()
    assert facts(again) == facts(grid)
    assert again.get_best_result().path == grid.get_best_result().path
    assert again.get_dataframe().equals(grid.get_dataframe())
    assert bench.starts() == before


@pytest.mark.parametrize("searcher", ["variants", "optuna"])
def test_more_samples_continue_the_search(bench: Bench, searcher: str) -> None:
    """No seed is given to the first: the one that was drawn is written down."""
    first, more = 15, 20  # Optuna's model begins after ten random ones
    settings: dict[str, Any] = {
        "trainable": one_row,
        "engine": "inline",
        "max_concurrent_trials": 1,
        "mode": "min",
    }
    first_search = OptunaSearch() if searcher == "optuna" else None
    grid = bench.tuner(num_samples=first, search_alg=first_search, **settings).fit()
    raised = Tuner.restore(grid.experiment_path, one_row, num_samples=more).fit()
    assert len(raised) == more
    assert facts(raised)[:first] == facts(grid)
    assert len(bench.starts()) == more, "trials were run twice"

    seed = experiment_records(grid.experiment_path)[0]["seed"]
    same_search = OptunaSearch(seed=seed) if searcher == "optuna" else BasicVariantGenerator(random_state=seed)
    uninterrupted = bench.tuner(num_samples=more, search_alg=same_search, **settings).fit()
    assert [each["config"] for each in facts(uninterrupted)] == [each["config"] for each in facts(raised)]


def test_grid_with_more_samples(bench: Bench) -> None:
    space = {"x": tune.grid_search([1, 2, 3])}
    grid = bench.tuner(space, num_samples=1).fit()
    raised = Tuner.restore(grid.experiment_path, count, num_samples=2).fit()
    assert [each["config"]["x"] for each in facts(raised)] == [1, 2, 3, 1, 2, 3]
    assert len(bench.starts()) == 6


def test_interrupted_experiment_continues(bench: Bench) -> None:
    grid = bench.interrupted(at=2)
    reached = facts(grid)
    assert 3 <= len(reached) <= 4
    ended = [each for each in reached if each["status"] == "finished"]
    unfinished = {
        each["id"]: each["checkpoint"]["step"] for each in reached if each["checkpoint"] and each not in ended
    }
    assert 1 <= unfinished[reached[2]["id"]] < 3
    before = len(bench.starts())
    restored = Tuner.restore(grid.experiment_path, count).fit()
    assert [each["status"] for each in facts(restored)] == ["finished"] * 4
    assert [each["metrics"]["training_iteration"] for each in facts(restored)] == [3] * 4
    assert [each for each in facts(restored) if each["id"] in {end["id"] for end in ended}] == ended
    starts = dict(bench.starts()[before:])
    assert len(starts) == 4 - len(ended)
    assert {trial: after for trial, after in starts.items() if after} == unfinished


def test_unfinished_trials_can_be_left_as_they_are(bench: Bench) -> None:
    grid = bench.interrupted(at=1)
    before, reached = bench.starts(), facts(grid)
    restored = Tuner.restore(grid.experiment_path, count, resume_unfinished=False).fit()
    now = facts(restored)
    assert len(now) == 4
    assert {trial for trial, _ in bench.starts()[len(before) :]} == {each["id"] for each in now[len(reached) :]}
    assert [each["rows"] for each in now[: len(reached)]] == [each["rows"] for each in reached]


@pytest.mark.parametrize("way", ["moved", pytest.param("other directory of work", marks=pytest.mark.slow)])
def test_place_of_the_experiment_may_change(bench: Bench, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = bench.interrupted(at=1)
    here = Path(grid.experiment_path)
    if way == "moved":
        there = here.parent.with_name("elsewhere") / "renamed"
        there.parent.mkdir()
        here.rename(there)
    else:
        there = Path("storage") / here.name
        monkeypatch.chdir(bench.storage.parent)
    restored = Tuner.restore(there, count).fit()
    assert [each["rows"] for each in facts(restored)] == [3] * 4
    assert {Path(result.path).parent for result in restored} == {there.absolute()}
    assert way != "moved" or not here.exists()
    assert len(created_trials(there)) == 4


def test_other_trainable_is_told(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    grid = bench.interrupted(at=2)
    capfd.readouterr()
    restored = Tuner.restore(grid.experiment_path, renamed_count, run_config=RunConfig(verbose=1)).fit()
    assert len(restored) == 4
    assert not restored.errors
    told = " ".join("".join(capfd.readouterr()).split())
    assert re.search("trainable 'count'.*'renamed_count'", told)


def fails_at(number: int) -> dict[str, Any]:
    return {"x": tune.grid_search([0, 1, 2]), "fails": tune.sample_from(lambda spec: spec.config.x == number)}


def test_failed_trials_stay_failed_unless_asked(bench: Bench) -> None:
    space = {**fails_at(1), "marks": str(bench.marks.directory)}
    grid = bench.tuner(space, num_samples=1).fit()
    restored = Tuner.restore(grid.experiment_path, count, param_space=space).fit()
    assert [each["status"] for each in facts(restored)] == ["finished", "failed", "finished"]
    (error,) = restored.errors
    assert error.trial_id == grid.errors[0].trial_id  # type: ignore[attr-defined]
    assert "not mended yet" in str(error)
    assert len(bench.starts()) == 3


@pytest.mark.parametrize("again", ["resume_errored", "restart_errored"])
def test_failed_trials_get_another_chance(bench: Bench, again: str) -> None:
    space = {**fails_at(1), "marks": str(bench.marks.directory)}
    grid = bench.tuner(space, num_samples=1).fit()
    failed = grid.errors[0].trial_id  # type: ignore[attr-defined]
    (bench.marks.directory / "mended").touch()
    restored = Tuner.restore(
        grid.experiment_path,
        count,
        resume_errored=again == "resume_errored",
        restart_errored=again == "restart_errored",
        param_space=space,
    ).fit()
    assert not restored.errors
    assert [each["rows"] for each in facts(restored)] == [3, 3, 3]
    assert bench.starts()[3:] == [(failed, 2 if again == "resume_errored" else 0)]
    assert (restored[1].path == grid[1].path) == (again == "resume_errored")
    third = Tuner.restore(grid.experiment_path, count, param_space=space).fit()
    assert facts(third) == facts(restored)
    assert len(bench.starts()) == 4


def test_experiment_can_be_interrupted_again_and_again(bench: Bench) -> None:
    grid = bench.interrupted(at=1, num_samples=6, max_concurrent_trials=1)
    for at in (3, 4):
        config = RunConfig(callbacks=[InterruptAt(at)], verbose=0)
        with pytest.raises(KeyboardInterrupt):
            Tuner.restore(grid.experiment_path, count, run_config=config).fit()
    restored = Tuner.restore(grid.experiment_path, count, run_config=RunConfig(verbose=0)).fit()
    assert [each["rows"] for each in facts(restored)] == [3] * 6
    assert len(bench.starts()) == 6 + 3, "each interruption costs its one running trial one more start"


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


# -- trials that a restore leaves as they are -----------------------------------------------------


@pytest.mark.parametrize("status", ["interrupted", "unfinished"])
def test_trials_that_were_left_can_be_continued_later(bench: Bench, status: str) -> None:
    grid = bench.interrupted(at=1, max_concurrent_trials=1)
    reached = facts(grid)[1]
    assert 1 <= reached["rows"] < 3
    if status == "unfinished":
        drop_from(Path(grid.outcomes[1].path) / "journal.jsonl", kind="end")  # as if the driver had been killed
    left = Tuner.restore(grid.experiment_path, count, resume_unfinished=False)
    for results in (left.fit(), Tuner.restore(grid.experiment_path, count).get_results()):
        assert [each["status"] for each in facts(results)] == ["finished", status, "finished", "finished"]
        assert facts(results)[1]["rows"] == reached["rows"]
        assert results.outcomes[1].metrics["done"] == (status == "interrupted")
        assert not results.errors
    before = len(bench.starts())
    continued = facts(Tuner.restore(grid.experiment_path, count).fit())
    assert [each["status"] for each in continued] == ["finished"] * 4
    assert [each["rows"] for each in continued] == [3] * 4
    assert bench.starts()[before:] == [(reached["id"], reached["checkpoint"]["step"])]


class Noting(BasicVariantGenerator):
    """Notes how far each trial had come when it was over."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, int | None] = {}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        number = trial_id[-1:]
        assert number not in self.ends
        self.ends[number] = result["training_iteration"] if result else None
        super().on_trial_complete(trial_id, result, error)


@pytest.mark.parametrize("leave", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_searcher_neither_waits_for_trials_that_are_left_nor_takes_them_for_finished(bench: Bench, leave: bool) -> None:
    searcher = Noting()
    grid = bench.interrupted(at=1, search_alg=ConcurrencyLimiter(Noting(), max_concurrent=1))
    settings = TuneConfig(search_alg=ConcurrencyLimiter(searcher, max_concurrent=1))
    Tuner.restore(grid.experiment_path, count, resume_unfinished=not leave, tune_config=settings).fit()
    assert searcher.ends == {"0": 3, "1": None if leave else 3, "2": 3, "3": 3}


# -- which experiment -----------------------------------------------------------------------------


def test_newest_of_several_experiments_is_told_by_their_journals(bench: Bench) -> None:
    """Copies have other times, in any order."""
    path = Path(bench.tuner(num_samples=1).fit().experiment_path)
    (first,) = path.glob("experiment-*.jsonl")
    bench.tuner(num_samples=2).fit()
    ahead = first.stat().st_mtime + 1000
    os.utime(first, (ahead, ahead))
    assert len(Tuner.restore(path, count).get_results()) == 2


def test_experiment_of_which_nothing_was_written_is_passed_over(bench: Bench) -> None:
    path = Path(bench.tuner(num_samples=1).fit().experiment_path)
    empty = path / "experiment-empty.jsonl"
    empty.touch()
    ahead = empty.stat().st_mtime + 1000
    os.utime(empty, (ahead, ahead))
    assert len(Tuner.restore(path, count).get_results()) == 1


# -- the same Tuner once more ---------------------------------------------------------------------


class ToldOnce(FIFOScheduler):
    """Must not hear of a trial twice."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[str] = set()

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        assert trial.trial_id not in self.known
        self.known.add(trial.trial_id)


def test_restored_tuner_can_go_on_after_an_interruption(bench: Bench) -> None:
    grid = bench.interrupted(at=1, scheduler=ToldOnce(), max_concurrent_trials=1)  # trial 2 must not be past row 1
    restored = Tuner.restore(
        grid.experiment_path,
        count,
        tune_config=TuneConfig(scheduler=ToldOnce()),
        run_config=RunConfig(callbacks=[InterruptAt(2)], verbose=0),
    )
    with pytest.raises(KeyboardInterrupt):
        restored.fit()
    assert [each["rows"] for each in facts(restored.fit())] == [3] * 4
    assert [each["rows"] for each in facts(restored.fit())] == [3] * 4


def test_searcher_object_of_a_restored_tuner_serves_once(bench: Bench) -> None:
    grid = bench.interrupted(at=1, search_alg=Noting())
    restored = Tuner.restore(grid.experiment_path, count, tune_config=TuneConfig(search_alg=Noting()))
    restored.fit()
    with pytest.raises(ConfigError, match=r"Noting.*Tuner\.restore\(\)"):
        restored.fit()


# -- no experiment ----------------------------------------------------------------------------


def test_directory_without_an_experiment_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        assert not Tuner.can_restore(path)
        with pytest.raises(RestoreError, match="search"):
            Tuner.restore(path, count)


class RestoreInside(Callback):
    """Tries to take the experiment over while it runs."""

    def __init__(self) -> None:
        self.refusals: list[str] = []

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if not self.refusals:
            with pytest.raises(RunLockedError) as caught:
                Tuner.restore(Path(trial.local_path).parent, count).fit()
            self.refusals.append(str(caught.value))


def test_running_experiment_is_not_taken_over(bench: Bench) -> None:
    callback = RestoreInside()
    grid = bench.tuner(callbacks=[callback], num_samples=2).fit()
    assert [each["rows"] for each in facts(grid)] == [3, 3]
    assert str(os.getpid()) in callback.refusals[0]
