"""Searches as programs for Ray Tune write them: what ends a trial, what it is compared by, what is raised."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import tune
from paceline.air import session
from paceline.air.errors import ConfigError
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search import Searcher
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


def test_a_searcher_may_leave_out_whether_a_trial_failed() -> None:
    told: list[Any] = []

    class Old(Searcher):
        def suggest(self, trial_id: str) -> Any:
            return {"x": len(told)}

        def on_trial_complete(self, trial_id: str, result: Any = None) -> None:  # type: ignore[override]
            told.append(result["_metric"])

    search(lambda config: config["x"], {}, search_alg=Old(), num_samples=2, max_concurrent_trials=1, engine="inline")
    assert told == [0, 1]


def test_a_searcher_that_cannot_be_called_is_rejected_before_anything_starts() -> None:
    class Strange(Searcher):
        def on_trial_complete(self) -> None:  # type: ignore[override]
            """Has no place for anything."""

    with pytest.raises(ConfigError, match=r"Strange.on_trial_complete.*trial_id"):
        tuner(by_number, search_alg=Strange()).fit()
