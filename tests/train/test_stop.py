"""Stopping early: every rank ends after the same report, and what it had open is closed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, session
from paceline.air.errors import ConfigError
from paceline.run.stoppers import MaximumIterationStopper, Stopper
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from tests.train.quick import quick_trainer


class StopAtLoss(Stopper):
    """A stopper of the user's own. A run works with a copy of it, so what it saw is noted outside."""

    def __init__(self, loss: float, marks: str | None = None) -> None:
        self.loss = loss
        self.marks = marks

    def __call__(self, trial_id: str, result: Any) -> bool:
        if self.marks is not None:
            Marks(self.marks).say("seen", loss=result["loss"])
        return bool(result["loss"] <= self.loss)

    def stop_all(self) -> bool:
        return False


def descend(config: dict[str, Any]) -> None:
    """Report falling losses without end; say what was reached when it is over."""
    marks = Marks(config["marks"])
    loss, reports = 10.0, 0
    try:
        while True:
            loss -= 1
            reports += 1
            checkpoint = Checkpoint.from_dict({"reports": reports}) if config["saves"] else None
            session.report({"loss": loss, "nested": {"gain": -loss}}, checkpoint=checkpoint)
    finally:
        marks.say("ended", rank=session.get_world_rank(), reports=reports)


STOPS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"training_iteration": 6},
    "nested": lambda: {"nested/gain": -4},
    "several": lambda: {"training_iteration": 100, "nested/gain": -4},
    "function": lambda: lambda trial_id, result: result["loss"] <= 4,
    "Stopper": lambda: StopAtLoss(4),
    "built-in": lambda: MaximumIterationStopper(6),
}


@pytest.mark.parametrize(
    ("stop", "saves", "ranks"),
    [
        *((name, False, 1) for name in STOPS),
        ("dict", True, 3),
        ("Stopper", False, 2),
        pytest.param("function", False, 3, marks=pytest.mark.slow),
    ],
)
def test_every_rank_ends_after_the_same_report(tmp_path: Path, stop: str, saves: bool, ranks: int) -> None:
    marks = Marks(tmp_path / "marks")
    config = {"marks": str(marks.directory), "saves": saves}
    result = quick_trainer(descend, workers=ranks, inline=ranks == 1, config=config, stop=STOPS[stop]()).fit()
    check_run(result.path, result=result, iterations=6, attempts=1)
    assert (result.error, result.status) == (None, "finished")
    assert sorted((mark["rank"], mark["reports"]) for mark in marks.read("ended")) == [
        (rank, 6) for rank in range(ranks)
    ]
    assert {rank: metrics["loss"] for rank, metrics in result.rank_metrics.items()} == dict.fromkeys(range(ranks), 4.0)
    if saves:
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict()["reports"] == 6
    assert not [warning for warning in result.warnings if "killed" in warning]


def test_the_stopper_sees_every_row_of_rank_zero(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    config = {"marks": str(marks.directory), "saves": False}
    quick_trainer(descend, inline=True, config=config, stop=StopAtLoss(7, str(marks.directory))).fit()
    assert [mark["loss"] for mark in marks.read("seen")] == [9, 8, 7]


def test_a_threshold_that_is_never_reached(tmp_path: Path) -> None:
    def loop() -> None:
        for n in range(3):
            session.report({"n": n})

    result = quick_trainer(loop, inline=True, stop={"n": 100}).fit()
    check_run(result.path, result=result, iterations=3)


def test_an_except_block_does_not_swallow_the_stop(tmp_path: Path) -> None:
    def loop() -> None:
        while True:
            try:
                session.report({})
            except Exception as error:
                raise AssertionError("the stop is not an Exception") from error

    result = quick_trainer(loop, workers=1, stop={"training_iteration": 2}).fit()
    check_run(result.path, result=result, iterations=2)


def test_a_rank_that_fails_while_it_stops_is_only_warned_about() -> None:
    def loop() -> None:
        try:
            while True:
                session.report({})
        finally:
            if session.get_world_rank() == 1:
                raise ValueError("while cleaning up")

    result = quick_trainer(loop, stop={"training_iteration": 2}, failure_config=FailureConfig(max_failures=3)).fit()
    check_run(result.path, result=result, iterations=2, attempts=1)
    assert [warning for warning in result.warnings if "rank 1" in warning and "while cleaning up" in warning]


def test_ranks_that_never_report_are_ended_after_their_grace(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        if session.get_world_rank() == 0:
            while True:
                session.report({})
        Marks(config["marks"]).pass_gate("never")

    result = quick_trainer(
        loop,
        config={"marks": str(tmp_path / "marks")},
        stop={"training_iteration": 3},
        failure_config=FailureConfig(stop_grace_s=0.2),
    ).fit()
    check_run(result.path, result=result, iterations=3)
    assert [warning for warning in result.warnings if "grace" in warning]


@pytest.mark.parametrize("stop", [7, "loss", ["loss"], {"loss": "low"}, {1: 2}])
def test_what_cannot_be_a_condition(stop: Any) -> None:
    with pytest.raises(ConfigError, match=r"\bstop\b"):
        quick_trainer(lambda: None, stop=stop).fit()


def test_a_condition_that_raises_ends_the_run(results_dir: Path) -> None:
    def broken(trial_id: str, result: dict[str, Any]) -> bool:
        raise KeyError("accuracy")

    def loop() -> None:
        while True:
            session.report({})

    with pytest.raises(KeyError, match="accuracy"):
        quick_trainer(loop, workers=1, stop=broken).fit()
    (trial,) = (path.parent for path in results_dir.glob("*/*/journal.jsonl"))
    check_run(trial)


def test_a_condition_whose_metric_never_came_is_told_when_the_run_has_ended_well() -> None:
    def loop() -> None:
        for epoch in range(3):
            session.report({"accuracy": epoch / 10})

    result = quick_trainer(loop, inline=True, stop={"acuracy": 0.9}).fit()
    assert [row["accuracy"] for row in result.metrics_dataframe.to_dict("records")] == [0.0, 0.1, 0.2]
    (told,) = result.warnings
    assert re.search(r"'acuracy'.*\baccuracy\b", told)


def test_a_condition_may_be_about_a_metric_of_some_rows() -> None:
    def loop() -> None:
        for epoch in range(100):
            session.report({"validated": epoch} if epoch % 5 == 4 else {"loss": 1.0})

    result = quick_trainer(loop, inline=True, stop={"validated": 14}).fit()
    assert result.metrics["training_iteration"] == 15
    assert not result.warnings
