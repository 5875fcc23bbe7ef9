"""What contradicts the experiment that is restored is refused, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig
from paceline.air.errors import RestoreError
from paceline.tune import TuneConfig, Tuner


def doubled(config: dict[str, Any]) -> dict[str, Any]:
    return {"x": 2 * config["a"]}


@pytest.fixture
def searched(tmp_path: Path) -> str:
    return (
        Tuner(
            doubled,
            param_space={"a": tune.grid_search([1, 2]), "b": (1, 2)},
            tune_config=TuneConfig(metric="x", mode="min"),
            run_config=RunConfig(name="searched", storage_path=str(tmp_path), verbose=0),
        )
        .fit()
        .experiment_path
    )


@pytest.mark.parametrize(
    "space", [{"a": tune.grid_search([5, 6])}, {"c": 1}, {"a": tune.grid_search([1, 2]), "b": doubled}]
)
def test_another_space_would_mix_two_searches(searched: str, space: dict[str, Any]) -> None:
    with pytest.raises(RestoreError, match="param_space differs"):
        Tuner.restore(searched, doubled, param_space=space)


def test_the_same_space_may_be_given_again(searched: str) -> None:
    space = {"a": tune.grid_search([1, 2]), "b": (1, 2)}
    grid = Tuner.restore(searched, doubled, param_space=space, num_samples=2).fit()
    assert [result.metrics["x"] for result in grid] == [2, 4, 2, 4]
    assert [result.config["b"] for result in grid if result.config] == [(1, 2)] * 4


@pytest.mark.parametrize("change", [{"mode": "max"}, {"metric": "y"}])
def test_another_goal_is_refused(searched: str, change: dict[str, Any]) -> None:
    with pytest.raises(RestoreError, match="searched with"):
        Tuner.restore(searched, doubled, tune_config=TuneConfig(**{"metric": "x", "mode": "min", **change}))


def test_an_edited_script_that_resumes_is_told(searched: str) -> None:
    path = Path(searched)
    with pytest.raises(RestoreError, match="param_space differs"):
        tune.run(
            doubled,
            config={"a": tune.grid_search([7, 8, 9])},
            name=path.name,
            storage_path=str(path.parent),
            resume=True,
            verbose=0,
        )
