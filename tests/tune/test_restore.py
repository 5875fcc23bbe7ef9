"""Tuner.restore(): what goes on, what is left as it was, and what must be given again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig
from paceline.air.errors import ConfigError, RestoreError, RunLockedError
from paceline.testing.tune_invariants import created_trials, experiment_records
from paceline.tune import Callback, TuneConfig, Tuner
from paceline.tune.schedulers import FIFOScheduler
from paceline.tune.search import BasicVariantGenerator, OptunaSearch
from tests.tune.counting import count, one_row
from tests.tune.interrupting import Bench, InterruptAt, facts


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
    settings: dict[str, Any] = {"trainable": one_row, "max_concurrent_trials": 1, "mode": "min"}
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


@pytest.mark.parametrize("way", ["moved", "other directory of work"])
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


def renamed_count(config: dict[str, Any]) -> None:
    count(config)


def test_other_trainable_is_told(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    grid = bench.interrupted(at=2)
    capfd.readouterr()
    restored = Tuner.restore(grid.experiment_path, renamed_count, run_config=RunConfig(verbose=1)).fit()
    assert len(restored) == 4
    assert not restored.errors
    told = " ".join("".join(capfd.readouterr()).split())
    assert "made with the trainable 'count' and is continued with 'renamed_count'" in told


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


# -- what must be given again ---------------------------------------------------------------


def test_space_with_functions_is_to_be_given_again(bench: Bench) -> None:
    space = {"x": tune.sample_from(lambda spec: 7), "marks": str(bench.marks.directory)}
    grid = bench.interrupted(at=0, space=space)
    with pytest.raises(RestoreError, match=r"param_space holds functions.*param_space=\.\.\.") as caught:
        Tuner.restore(grid.experiment_path, count)
    assert "Tuner.restore(" in str(caught.value)
    restored = Tuner.restore(grid.experiment_path, count, param_space=space).fit()
    assert [each["config"]["x"] for each in facts(restored)] == [7] * 4


class OwnScheduler(FIFOScheduler):
    pass


def test_scheduler_of_ones_own_is_to_be_given_again(bench: Bench) -> None:
    grid = bench.interrupted(at=0, scheduler=OwnScheduler())
    with pytest.raises(RestoreError, match=r"scheduler is of a class of your own.*TuneConfig\(scheduler=\.\.\.\)"):
        Tuner.restore(grid.experiment_path, count)
    restored = Tuner.restore(grid.experiment_path, count, tune_config=TuneConfig(scheduler=OwnScheduler())).fit()
    assert [each["rows"] for each in facts(restored)] == [3] * 4


def test_trainable_is_to_be_given_again(bench: Bench) -> None:
    grid = bench.tuner(num_samples=1).fit()
    with pytest.raises(ConfigError, match="needs the trainable again"):
        Tuner.restore(grid.experiment_path)


def test_callbacks_that_are_not_given_again_are_mentioned(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    tuner = bench.tuner(callbacks=[Callback()], num_samples=1)
    tuner._run_config.verbose = 1
    grid = tuner.fit()
    capfd.readouterr()
    Tuner.restore(grid.experiment_path, count).fit()
    assert "had callbacks, which restore() cannot bring back" in " ".join("".join(capfd.readouterr()).split())


# -- no experiment ----------------------------------------------------------------------------


def test_directory_without_an_experiment_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        assert not Tuner.can_restore(path)
        with pytest.raises(RestoreError, match="experiment"):
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
