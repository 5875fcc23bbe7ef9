"""ResultGrid: which trial is best, what the table says, and what is read for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import session
from paceline.air.errors import ConfigError, TuneError
from paceline.air.result import Result
from paceline.run.spec import Trial
from paceline.tune.result_grid import ResultGrid, TrialOutcome
from tests.train.quick import quick_trainer
from tests.tune.outcomes import Outcomes, losses

INFINITE = math.inf
NAN = math.nan


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


def best_id(grid: ResultGrid, **asked: Any) -> str:
    return str(grid.get_best_result(**asked).metrics["trial_id"])


def test_best_by_the_last_value_reads_no_file_but_the_winners(outcomes: Outcomes) -> None:
    outcomes.add(losses(1.0, 9.0))
    outcomes.add(losses(8.0, 3.0))
    outcomes.add(losses(2.0, 4.0))
    grid = outcomes.grid("loss", "min")
    assert best_id(grid) == "abcde_00001"
    assert outcomes.loads == ["abcde_00001"]
    assert best_id(grid, mode="max") == "abcde_00000"
    assert best_id(outcomes.grid(), metric="loss", mode="min") == "abcde_00001"


@pytest.mark.parametrize(
    ("scope", "mode", "expected"),
    [
        ("last", "min", 1),
        ("avg", "min", 2),  # means: 6.08, 4.92, 3.92
        ("last-5-avg", "min", 1),  # 7.2, 3, 4
        ("last-10-avg", "min", 1),  # 6.6, 3.5, 3.9
        ("all", "min", 0),
        ("all", "max", 1),
    ],
)
def test_scopes(outcomes: Outcomes, scope: Any, mode: Any, expected: int) -> None:
    outcomes.add(losses(7, 0.0, 6, 6, 6, 6, 6, 7, 7, 7, 7, 8))
    outcomes.add(losses(20, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3))
    outcomes.add(losses(4, 4, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4))
    assert best_id(outcomes.grid("loss", mode), scope=scope) == f"abcde_{expected:05d}"


def test_equal_values_the_first_trial_wins(outcomes: Outcomes) -> None:
    for _ in range(3):
        outcomes.add(losses(1.0))
    assert best_id(outcomes.grid("loss", "min")) == "abcde_00000"
    assert best_id(outcomes.grid("loss", "max")) == "abcde_00000"


@pytest.mark.parametrize("mode", ["min", "max"])
def test_nan_and_infinite_values_do_not_count(outcomes: Outcomes, mode: Any) -> None:
    for value in (NAN, -INFINITE, INFINITE, 5.0, NAN):
        outcomes.add(losses(value))
    grid = outcomes.grid("loss", mode)
    assert best_id(grid) == "abcde_00003"
    unfiltered = {"min": "abcde_00001", "max": "abcde_00002"}[mode]
    assert best_id(grid, filter_nan_and_inf=False) == unfiltered


def test_nan_is_never_the_best(outcomes: Outcomes) -> None:
    outcomes.add(losses(NAN))
    outcomes.add(losses(3.0))
    assert best_id(outcomes.grid("loss", "max"), filter_nan_and_inf=False) == "abcde_00001"
    assert best_id(outcomes.grid("loss", "min"), filter_nan_and_inf=False) == "abcde_00001"


def test_all_rows_with_some_nan(outcomes: Outcomes) -> None:
    outcomes.add(losses(NAN, 1.0, NAN))
    outcomes.add(losses(2.0, 3.0, -INFINITE))
    assert best_id(outcomes.grid("loss", "min"), scope="all") == "abcde_00000"
    assert best_id(outcomes.grid("loss", "min"), scope="all", filter_nan_and_inf=False) == "abcde_00001"
    with pytest.raises(TuneError, match="finite"):
        outcomes.grid("loss", "min").get_best_result(scope="avg")


def test_a_metric_that_the_last_row_lacks_counts_as_reported_last(outcomes: Outcomes) -> None:
    outcomes.add([{"loss": 1.0}, {"loss": 4.0}, {"note": "the end"}])
    outcomes.add([{"loss": 3.0}, {"note": "the end"}])
    outcomes.add([{"loss": "text"}])
    assert best_id(outcomes.grid("loss", "min")) == "abcde_00001"


def test_nested_metrics(outcomes: Outcomes) -> None:
    outcomes.add([{"valid": {"loss": 2.0}}])
    outcomes.add([{"valid": {"loss": 1.0}}])
    assert best_id(outcomes.grid("valid/loss", "min")) == "abcde_00001"


def test_a_failed_trial_counts_only_if_asked_for(outcomes: Outcomes) -> None:
    outcomes.add(losses(2.0))
    outcomes.add(losses(1.0), error=ValueError("later"))
    outcomes.add([], error=ValueError("at once"))
    grid = outcomes.grid("loss", "min")
    assert grid.get_best_result().metrics["loss"] == 2.0
    assert "best=abcde_00000" in repr(grid)
    best = grid.get_best_result(include_failed=True)
    assert best.metrics["loss"] == 1.0
    assert isinstance(best.error, ValueError)


@pytest.mark.parametrize("number", [1, 2])
def test_of_failed_trials_none_is_the_best(outcomes: Outcomes, number: int) -> None:
    for _ in range(number):
        outcomes.add(losses(1.0), error=ValueError("no memory"))
    grid = outcomes.grid("loss", "min")
    with pytest.raises(TuneError, match=r"trials? failed.*no memory.*include_failed=True"):
        grid.get_best_result()
    assert grid.get_best_result(include_failed=True).metrics["loss"] == 1.0


def test_without_a_metric_it_is_the_number_without_a_name(outcomes: Outcomes) -> None:
    outcomes.add([{"_metric": 2.0, "loss": 1.0}])
    outcomes.add([{"_metric": 1.0, "loss": 2.0}])
    assert best_id(outcomes.grid(mode="min")) == "abcde_00001"
    assert best_id(outcomes.grid(), mode="max") == "abcde_00000"


def test_the_only_trial_is_the_best_without_a_metric(outcomes: Outcomes) -> None:
    outcomes.add([])
    assert outcomes.grid().get_best_result() is outcomes.made[0].result


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, r"TuneConfig.*metric=.*accuracy, loss"),
        ({"metric": "loss"}, "TuneConfig.*'min' or 'max'"),
        ({"metric": "loss", "mode": "least"}, "mode.*'least'"),
        ({"metric": "loss", "mode": "min", "scope": "first"}, "scope.*'first'"),
    ],
)
def test_what_cannot_be_asked(outcomes: Outcomes, asked: dict[str, Any], message: str) -> None:
    for value in (1.0, 2.0):
        outcomes.add([{"loss": value, "accuracy": 0.5}])
    with pytest.raises(ConfigError, match=message):
        outcomes.grid().get_best_result(**asked)


def test_several_objectives(outcomes: Outcomes) -> None:
    outcomes.add([{"loss": 1.0, "accuracy": 0.5}])
    outcomes.add([{"loss": 2.0, "accuracy": 0.9}])
    grid = ResultGrid(outcomes.made, experiment_path="/experiment", metric=["loss", "accuracy"], mode=["min", "max"])
    assert best_id(grid, metric="loss") == "abcde_00000"
    assert best_id(grid[:2], metric="accuracy") == "abcde_00001"
    assert "trials=2" in repr(grid)
    with pytest.raises(ConfigError, match=r"loss, accuracy.*metric="):
        grid.get_best_result()


def test_no_trial_qualifies(outcomes: Outcomes) -> None:
    with pytest.raises(RuntimeError, match="no trials"):
        outcomes.grid("loss", "min").get_best_result()
    outcomes.add([], error=ValueError("at once"))
    outcomes.add([])
    with pytest.raises(RuntimeError, match=r"\b1 failed.*\.errors"):
        outcomes.grid("loss", "min").get_best_result()
    outcomes.add(losses(NAN))
    with pytest.raises(RuntimeError, match=r"'loss'.*NaN"):
        outcomes.grid("loss", "min").get_best_result()
    with pytest.raises(RuntimeError, match=r"loss\?"):
        outcomes.grid("los", "min").get_best_result()
    with pytest.raises(RuntimeError, match=r"'accuracy'.*loss, training_iteration"):
        outcomes.grid("accuracy", "min").get_best_result()


def test_length_indices_and_iteration(outcomes: Outcomes) -> None:
    for value in range(4):
        outcomes.add(losses(value))
    grid = outcomes.grid("loss", "max")
    assert len(grid) == 4
    assert grid[1] is grid[1]
    assert grid[-1].metrics["loss"] == 3
    assert outcomes.loads == ["abcde_00001", "abcde_00003"]
    assert [result.metrics["loss"] for result in grid] == [0, 1, 2, 3]
    assert [result.metrics["loss"] for result in grid] == [0, 1, 2, 3]
    assert len(outcomes.loads) == 4
    with pytest.raises(IndexError):
        grid[4]
    middle = grid[1:3]
    assert isinstance(middle, ResultGrid)
    assert [result.metrics["loss"] for result in middle] == [1, 2]
    assert best_id(middle) == "abcde_00002"
    assert middle.experiment_path == grid.experiment_path == "/experiment"


def test_errors_know_their_trial(outcomes: Outcomes) -> None:
    outcomes.add(losses(1.0))
    outcomes.add(losses(1.0), error=ValueError("first"))
    outcomes.add([], error=KeyError("second"))
    grid = outcomes.grid()
    assert [(str(error), error.trial_id) for error in grid.errors] == [  # type: ignore[attr-defined]
        ("first", "abcde_00001"),
        ("'second'", "abcde_00002"),
    ]
    assert (grid.num_errors, grid.num_terminated) == (2, 1)
    assert outcomes.loads == []


def test_dataframe_of_last_rows(outcomes: Outcomes) -> None:
    space = {"lr": 0.1, "model": {"width": 3, "act": None}, "empty": {}}
    outcomes.add([{"loss": 2.0, "valid": {"acc": 0.1}}, {"loss": 1.0, "valid": {"acc": 0.2}}], config=space)
    outcomes.add([], config={"lr": 0.2}, error=ValueError("at once"))
    frame = outcomes.grid().get_dataframe()
    assert list(frame["trial_id"]) == ["abcde_00000", "abcde_00001"]
    assert list(frame["config/lr"]) == [0.1, 0.2]
    assert frame["config/model/width"][0] == 3
    assert frame["valid/acc"][0] == 0.2
    assert frame["training_iteration"][0] == 2
    assert math.isnan(frame["loss"][1])
    assert list(frame["logdir"]) == ["/experiment/abcde_00000", "/experiment/abcde_00001"]
    assert not {"config", "config/empty"} & set(frame.columns)
    assert outcomes.loads == []


def test_dataframe_of_best_rows(outcomes: Outcomes) -> None:
    outcomes.add(losses(3.0, 1.0, 1.0, NAN, 2.0))
    outcomes.add(losses(5.0, INFINITE))
    outcomes.add([{"other": 7}])
    grid = outcomes.grid("loss", "min")
    assert list(grid.get_dataframe(filter_metric="loss", filter_mode="min")["training_iteration"]) == [2, 1, 1]
    assert list(grid.get_dataframe(filter_metric="loss", filter_mode="max")["training_iteration"]) == [1, 2, 1]
    assert grid.get_dataframe(filter_metric="loss").equals(grid.get_dataframe(filter_mode="min"))
    assert grid.get_dataframe(filter_metric="loss")["other"][2] == 7
    with pytest.raises(ConfigError, match="mode"):
        outcomes.grid().get_dataframe(filter_metric="loss")


def test_columns_of_the_dataframe_are_in_order(outcomes: Outcomes) -> None:
    outcomes.add([], config={"lr": 0.1})
    outcomes.add([{"loss": 1.0}], config={"lr": 0.2})
    names = ["trial_id", "training_iteration", "loss", "config/lr", "logdir"]
    assert list(outcomes.grid().get_dataframe().columns) == names


def test_dataframe_of_no_trials(outcomes: Outcomes) -> None:
    assert len(outcomes.grid().get_dataframe()) == 0


def test_repr_tells_how_it_went(outcomes: Outcomes) -> None:
    assert repr(outcomes.grid()) == "ResultGrid(\n  trials=0,\n  path='/experiment',\n)"
    outcomes.add(losses(NAN))
    outcomes.add(losses(2.0))
    outcomes.add([], error=ValueError("at once"))
    shown = repr(outcomes.grid("loss", "min"))
    assert "trials=3 (2 finished, 1 failed)" in shown
    assert "best=abcde_00001 with loss=2 (min)" in shown
    assert outcomes.loads == []


def test_many_trials_are_not_read(outcomes: Outcomes) -> None:
    for number in range(1000):
        outcomes.add(losses(1.0, float(number)))
    grid = outcomes.grid("loss", "max")
    assert best_id(grid) == "abcde_00999"
    assert len(grid.get_dataframe()) == 1000
    assert outcomes.loads == ["abcde_00999"]


def train_towards(config: dict[str, Any]) -> None:
    for step in range(3):
        session.report({"distance": abs(config["goal"] - step)})


def from_directory(path: Path) -> Callable[[], Result]:
    return lambda: Result.from_path(path)


def test_trials_on_disk() -> None:
    outcomes = []
    for goal in (0, 1):
        result = quick_trainer(train_towards, workers=1, config={"goal": goal}, engine="inline").fit()
        path = Path(result.path)
        trial = Trial(result.metrics["trial_id"], "train", result.path, "abcde", config={"goal": goal})
        outcomes.append(TrialOutcome(trial, result.metrics, "finished", None, from_directory(path)))
    grid = ResultGrid(outcomes, experiment_path=outcomes[0].path.parent, metric="distance", mode="min")
    assert grid.get_best_result().path == str(outcomes[1].path)
    assert grid.get_best_result(scope="all").path == str(outcomes[0].path)
    assert grid.get_best_result(mode="max", scope="avg").path == str(outcomes[0].path)
    assert list(grid.get_dataframe(filter_metric="distance")["training_iteration"]) == [1, 2]
    assert grid[0].metrics_dataframe["distance"].tolist() == [0, 1, 2]


def test_means_are_over_the_last_rows() -> None:
    outcomes = Outcomes()
    outcomes.add(losses(*[100.0] * 5, *[10.0] * 5, 1.0, 2.0, 3.0, 4.0, 5.0))
    (outcome,) = outcomes.made
    assert outcome.value("loss", "min", "last-5-avg") == 3.0
    assert outcome.value("loss", "min", "last-10-avg") == 6.5
    assert outcome.value("loss", "min", "avg") == 565 / 15


def test_a_misspelt_metric_of_a_table_is_told(outcomes: Outcomes) -> None:
    outcomes.add([])
    assert len(outcomes.grid().get_dataframe("los", "min")) == 1, "nothing was reported at all"
    outcomes.add([{"loss": 1.0, "accuracy": 0.5}, {"loss": 2.0}])
    with pytest.raises(RuntimeError, match=r"loss\?"):
        outcomes.grid().get_dataframe("los", "min")
    assert list(outcomes.grid().get_dataframe("accuracy", "max")["loss"])[1] == 1.0, "a metric of some rows"


def test_a_metric_that_is_text_is_called_text(outcomes: Outcomes) -> None:
    for _ in range(2):
        outcomes.add([{"loss": "0.5"}])
    with pytest.raises(RuntimeError, match=r"'loss'.*text.*'0\.5'.*float\("):
        outcomes.grid("loss", "min").get_best_result()


def test_a_mode_that_is_none_is_refused_for_one_trial_too(outcomes: Outcomes) -> None:
    outcomes.add(losses(1.0))
    with pytest.raises(ConfigError, match=r"mode.*'lowest'"):
        outcomes.grid().get_best_result("loss", "lowest")  # type: ignore[arg-type]
