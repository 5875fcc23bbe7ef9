"""Searches as programs for Ray Tune write them: what ends a trial, what it is compared by, what is raised."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import tune
from paceline.air import FailureConfig, RunConfig, session
from paceline.air.errors import ConfigError, TuneError
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher
from paceline.tune.search.optuna import OptunaSearch
from tests.tune.searching import column, search, tuner

pytestmark = pytest.mark.usefixtures("two_cpus")


# -- what ends a trial, and what it is compared by --------------------------------------------


def test_a_row_that_says_done_is_the_last_one_of_a_function() -> None:
    def train(config: dict[str, Any]) -> None:
        for step in range(10):
            session.report({"step": step, "done": step == 3})

    for result in search(train, engine="inline"):
        assert column(result, "step") == [0, 1, 2, 3]


def by_number(config: dict[str, Any]) -> None:
    for _ in range(4):
        tune.report(config["x"])


def test_a_scheduler_without_a_metric_compares_numbers_without_a_name() -> None:
    space = {"x": tune.grid_search([3, 1, 2])}
    grid = search(by_number, space, scheduler=ASHAScheduler(mode="max", max_t=4), engine="inline")
    assert grid.get_best_result().config == {"x": 3}
    assert [result.metrics["training_iteration"] for result in grid] == [4, 1, 1]


def test_a_searcher_without_a_metric_learns_from_numbers_without_a_name() -> None:
    learned: list[Any] = []

    class Noting(OptunaSearch):
        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            super().on_trial_complete(trial_id, result, error)
            learned.append((self.metric, result["_metric"]))

    space = {"x": tune.uniform(0, 1)}
    searcher = Noting(sampler="random")
    grid = search(by_number, space, search_alg=searcher, mode="min", num_samples=2, engine="inline")
    assert learned == [("_metric", result.metrics["_metric"]) for result in grid]
    assert grid.get_best_result().metrics["_metric"] == min(value for _, value in learned)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_searcher_may_leave_out_newer_arguments(wrapped: bool) -> None:
    told: list[Any] = []

    class Old(Searcher):
        def set_search_properties(self, metric: Any, mode: Any, config: Any) -> bool:  # type: ignore[override]
            return True

        def suggest(self, trial_id: str) -> Any:
            return {"x": len(told)}

        def on_trial_complete(self, trial_id: str, result: Any = None) -> None:  # type: ignore[override]
            told.append(result["_metric"])

    searcher: Searcher = ConcurrencyLimiter(Old(), 1) if wrapped else Old()
    search(lambda config: config["x"], {}, search_alg=searcher, num_samples=2, max_concurrent_trials=1, engine="inline")
    assert told == [0, 1]


def test_a_searcher_that_cannot_be_called_is_rejected_before_anything_starts() -> None:
    class Strange(Searcher):
        def on_trial_complete(self) -> None:  # type: ignore[override]
            """Has no place for anything."""

    with pytest.raises(ConfigError, match=r"Strange.on_trial_complete.*trial_id"):
        tuner(by_number, search_alg=Strange()).fit()


# -- what is raised ---------------------------------------------------------------------------


class OfTheUserError(Exception):
    """An error of the program's own."""


def test_fail_fast_raise_raises_what_the_trial_raised() -> None:
    def train(config: dict[str, Any]) -> None:
        raise OfTheUserError(f"x is {config['x']}")

    stopping = FailureConfig(fail_fast="raise")
    with pytest.raises(OfTheUserError, match="x is 1") as raised:
        search(train, {"x": tune.grid_search([1, 2])}, failure_config=stopping, max_concurrent_trials=1)
    assert any("Training failed" in note for note in raised.value.__notes__)


def test_a_wrong_setting_of_a_search_is_a_tune_error() -> None:
    with pytest.raises(TuneError, match="Trainable") as raised:
        tune.Tuner(None)
    assert isinstance(raised.value, ConfigError)
    with pytest.raises(TuneError, match="register_trainable"):
        tune.run("no such name", verbose=0)
    with pytest.raises(TuneError, match="compares trials by a metric"):
        tuner(by_number, scheduler=ASHAScheduler()).fit()


# -- what trials find, and leave --------------------------------------------------------------


def test_trials_know_where_the_program_was_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"where": os.environ["TUNE_ORIG_WORKING_DIR"], "here": os.getcwd()}

    monkeypatch.chdir(tmp_path)
    (result,) = search(train)
    assert result.metrics["where"] == str(tmp_path)
    assert result.metrics["here"] != str(tmp_path)


def prints(config: dict[str, Any]) -> dict[str, Any]:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    return {"score": 1}


@pytest.mark.parametrize(
    ("given", "files"),
    [
        (True, {"stdout": "to stdout\n", "stderr": "to stderr\n"}),
        (("out", "err"), {"out": "to stdout\n", "err": "to stderr\n"}),
        ("both.log", {"both.log": "to stdout\nto stderr\n"}),
    ],
)
def test_output_is_copied_to_files_of_the_trial(given: Any, files: dict[str, str]) -> None:
    (result,) = search(prints, log_to_file=given)
    found = {name: Path(result.path, name).read_text() for name in files}
    assert found == files
    log = Path(result.path, "logs", "rank_0.log").read_text()
    assert "to stdout" in log
    assert "to stderr" in log


# -- seeds ------------------------------------------------------------------------------------


def drawn(**settings: Any) -> list[float]:
    grid = search(lambda config: config["x"], {"x": tune.uniform(0, 1)}, num_samples=2, engine="inline", **settings)
    return [result.metrics["_metric"] for result in grid]


@pytest.mark.usefixtures("unseeded")
@pytest.mark.parametrize("seed", [np.random.seed, random.seed])
def test_a_seeded_program_repeats_its_search(seed: Any) -> None:
    seed(7)
    first, further = drawn(), drawn()
    seed(7)
    assert drawn() == first
    assert further != first


@pytest.mark.usefixtures("unseeded")
def test_a_search_without_a_seed_is_random() -> None:
    first = drawn()
    random.seed()
    assert drawn() != first


@pytest.mark.usefixtures("unseeded")
def test_a_seed_of_the_search_wins_over_that_of_the_program() -> None:
    searches = []
    for seed in (1, 2):
        np.random.seed(seed)
        searches.append(drawn(search_alg=BasicVariantGenerator(random_state=3)))
    assert searches[0] == searches[1]


@pytest.mark.usefixtures("unseeded")
def test_a_restored_search_goes_on_with_the_seed_it_began_with(tmp_path: Path) -> None:
    np.random.seed(7)
    undisturbed = drawn()
    np.random.seed(7)
    space, quiet = {"x": tune.uniform(0, 1)}, {"engine": "inline", "storage_path": str(tmp_path)}
    search(lambda config: config["x"], space, name="lr=0.1, bs=(32)", **quiet)
    np.random.seed(8)
    again = tune.Tuner.restore(
        str(tmp_path / "lr=0.1, bs=(32)"),
        lambda config: config["x"],
        num_samples=2,
        run_config=RunConfig(verbose=0, **quiet),
    )
    assert [result.metrics["_metric"] for result in again.fit()] == undisturbed


# -- names, and stop criteria that name nothing -------------------------------------------------


def test_a_search_with_parameters_in_its_name_is_restored_from_remote_storage(results_dir: Path) -> None:
    name, place = "lr=0.1, bs=(32) 50%", "memory://ported"
    settings = {"name": name, "storage_path": place, "engine": "inline"}
    grid = search(lambda config: config["x"], {"x": tune.grid_search([1, 2])}, **settings)
    shutil.rmtree(results_dir / name)
    assert tune.Tuner.can_restore(grid.experiment_path)
    again = tune.Tuner.restore(
        grid.experiment_path, lambda config: config["x"], num_samples=2, run_config=RunConfig(verbose=0, **settings)
    ).fit()
    assert [result.metrics["_metric"] for result in again] == [1, 2, 1, 2]
    assert (results_dir / name).is_dir()


def test_a_stop_criterion_that_is_never_reported_ends_the_search() -> None:
    def train(config: dict[str, Any]) -> None:
        for step in range(100):
            session.report({"accuracy": step})

    with pytest.raises(TuneError, match=r"'acuracy'.*accuracy\?"):
        tuner(train, stop={"acuracy": 5}, engine="inline").fit()


def test_a_short_trial_without_the_metric_of_its_stop_criterion_causes_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    search(lambda config: {"accuracy": 1}, stop={"acuracy": 5}, engine="inline", verbose=1)
    assert "'acuracy'" in capsys.readouterr().out
