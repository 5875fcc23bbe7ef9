"""What the display knows of an experiment: counts, who runs, and which trial is best."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paceline.air.errors import AttemptFailure, TrainingFailedError, WorkerFailure
from paceline.run.spec import Trial
from tests.tune.progress.made_up import MadeUpExperiment


class TestStatus:
    def test_counts_follow_the_trials(self) -> None:
        experiment = MadeUpExperiment()
        first, second, third = (experiment.add() for _ in range(3))
        experiment.become(first, "RUNNING")
        experiment.become(second, "RUNNING")
        experiment.become(second, "PAUSED")
        experiment.become(first, "TERMINATED")
        experiment.fail(third, "boom")
        view = experiment.view
        assert {status: count for status, count in view.counts.items() if count} == {
            "PAUSED": 1,
            "TERMINATED": 1,
            "ERROR": 1,
        }
        assert (list(view.running), list(view.paused), list(view.recently_ended)) == ([], [second], [first])
        assert view.errors == {third: "boom"}

    def test_the_same_status_twice_counts_once(self) -> None:
        experiment = MadeUpExperiment()
        trial = experiment.add()
        experiment.view.note_status(trial)
        assert experiment.view.counts == {"PENDING": 1}

    def test_a_failed_trial_that_runs_again_is_no_error(self) -> None:
        experiment = MadeUpExperiment()
        trial = experiment.add()
        experiment.fail(trial, "boom")
        experiment.become(trial, "RUNNING")
        assert experiment.view.errors == {}
        assert experiment.view.counts["ERROR"] == 0

    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (ValueError("bad\nsecond line"), "ValueError: bad"),
            (KeyError(), "KeyError"),
            ("\n  text\nmore", "text"),
            (TrainingFailedError("Training failed: rank 1: oh\n..."), "Training failed: rank 1: oh"),
            (
                TrainingFailedError(
                    "Training failed", failures=(AttemptFailure(0, WorkerFailure(1, "exception", "ValueError: oh")),)
                ),
                "ValueError: oh",
            ),
        ],
    )
    def test_errors_are_told_in_a_line(self, error: Any, line: str) -> None:
        experiment = MadeUpExperiment()
        trial = experiment.add()
        experiment.fail(trial, error)
        assert experiment.view.errors[trial] == line


class TestBest:
    def values(self, mode: str, *rows: tuple[int, Any], metric: str = "loss") -> Trial | None:
        """The best trial after these rows of (number of trial, value)."""
        experiment = MadeUpExperiment(mode=mode, metric=metric)
        trials = [experiment.add() for _ in range(3)]
        for number, value in rows:
            experiment.report(trials[number], loss=value, nested={"loss": value})
        best = experiment.view.best_trial()
        assert experiment.view.best_trial() is best
        return best

    @pytest.mark.parametrize(
        ("mode", "rows", "best"),
        [
            ("min", [(0, 3.0), (1, 1.0), (2, 2.0)], 1),
            ("max", [(0, 3.0), (1, 1.0), (2, 2.0)], 0),
            ("min", [(0, 1), (1, 2), (0, 3)], 1),
            ("min", [(2, 1.0), (1, 1.0)], 1),
            ("min", [(0, float("nan")), (1, 5.0)], 1),
            ("max", [(0, float("inf")), (1, 5.0)], 1),
            ("min", [(0, 1.0), (1, 5.0), (0, float("nan"))], 1),
            ("min", [(0, 1.0), (1, 5.0), (0, float("nan")), (0, 2.0)], 0),
            ("min", [(0, 1.0), (1, 5.0), (0, None)], 0),
            ("min", [(0, 1.0), (1, 5.0), (0, 9.0), (2, 7.0)], 1),
            ("min", [(0, "text"), (1, True)], 1),
        ],
    )
    def test_by_the_last_value(self, mode: str, rows: list[tuple[int, Any]], best: int) -> None:
        found = self.values(mode, *rows)
        assert found is not None
        assert found.trial_id == f"4913f_{best:05d}"

    def test_none_without_a_usable_value(self) -> None:
        assert self.values("min") is None
        assert self.values("min", (0, float("nan"))) is None
        assert self.values("min", (0, 1.0), (0, float("nan"))) is None
        assert self.values("min", (0, 1.0), metric="other") is None

    def test_nested_metric(self) -> None:
        assert self.values("min", (0, 1.0), metric="nested/loss") is not None

    def test_without_a_metric(self) -> None:
        experiment = MadeUpExperiment(metric=None, mode=None)
        experiment.report(experiment.add(), loss=1.0)
        assert experiment.view.best_trial() is None
        assert experiment.view.best_value() is None

    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_as_a_search_over_all_would_find_it(self, mode: str) -> None:
        draw = random.Random(mode)
        experiment = MadeUpExperiment(mode=mode)
        trials = [experiment.add() for _ in range(6)]
        last: dict[Trial, float] = {}
        for _ in range(3000):
            trial = draw.choice(trials)
            value = draw.choice([float("nan"), *range(10)])
            experiment.report(trial, loss=value)
            last[trial] = value
            if draw.random() < 0.3:
                known = {trial: value for trial, value in last.items() if value == value}
                wanted = (min if mode == "min" else max)(known.values(), default=None)
                best = experiment.view.best_trial()
                assert experiment.view.best_value() == wanted
                assert best is next((trial for trial in trials if known.get(trial, object()) == wanted), None)


def test_a_trial_that_fails_is_not_the_best_any_more() -> None:
    experiment = MadeUpExperiment()
    good, bad = experiment.add(), experiment.add()
    for trial, loss in ((good, 9.0), (bad, 1.0)):
        experiment.become(trial, "RUNNING")
        experiment.report(trial, loss=loss)
    before = experiment.view.best_trial()
    experiment.fail(bad, "boom")
    assert (before, experiment.view.best_trial()) == (bad, good)
