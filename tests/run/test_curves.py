"""Curves of a run's metrics: few points of any number of rows, and the one that says most."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.run.curves import MOST_METRICS, MOST_POINTS, Curves


def row(iteration: int, **metrics: Any) -> dict[str, Any]:
    return {**metrics, "training_iteration": iteration, "time_total_s": 1.0, "config": {"lr": 1}}


def test_every_row_of_a_short_run() -> None:
    curves = Curves()
    for iteration in range(1, 4):
        curves.add(row(iteration, loss=1 / iteration, eval={"auc": iteration}, note="text", flag=True))
    assert curves.names() == ["loss", "eval/auc"]
    assert curves.of("loss") == ([1.0, 0.5, 1 / 3], [1, 2, 3])
    assert curves.of("eval/auc")[0] == [1, 2, 3]


def test_a_long_run_keeps_few_points_and_the_last() -> None:
    curves = Curves()
    for iteration in range(1, 100_001):
        curves.add(row(iteration, loss=iteration))
    values, iterations = curves.of("loss")
    assert MOST_POINTS / 2 < len(values) <= MOST_POINTS + 1
    assert values == iterations
    assert iterations[-1] == 100_000
    assert iterations == sorted(iterations)


def test_a_retry_takes_the_place_of_the_rows_after_its_checkpoint() -> None:
    curves = Curves()
    for iteration in (1, 2, 3, 4, 5, 3, 4):
        curves.add(row(iteration, loss=iteration))
    assert curves.of("loss")[1] == [1, 2, 3, 4]


def test_metrics_that_come_and_go_leave_gaps() -> None:
    curves = Curves()
    curves.add(row(1, loss=1))
    curves.add(row(2, accuracy=0.5))
    curves.add(row(3, loss=3, accuracy=0.6))
    assert curves.of("loss")[0] == [1, None, 3]


def test_many_metrics() -> None:
    curves = Curves()
    curves.add(row(1, **{f"m{number}": number for number in range(1000)}))
    assert len(curves.names()) == MOST_METRICS


@pytest.mark.parametrize(
    ("metrics", "favourite", "main"),
    [
        (["epoch", "accuracy", "val_loss"], None, "val_loss"),
        (["epoch", "global_step", "f1"], None, "f1"),
        (["epoch"], None, "epoch"),
        (["loss", "eval/auc"], "eval/auc", "eval/auc"),
        (["loss"], "absent", "loss"),
        (["train/lr", "reward"], None, "reward"),
        ([], None, None),
    ],
)
def test_the_metric_that_says_most(metrics: list[str], favourite: str | None, main: str | None) -> None:
    curves = Curves(favourite)
    curves.add(row(1, **dict.fromkeys(metrics, 1.0)))
    assert curves.main() == main


def test_no_rows_yet() -> None:
    assert Curves().main() is None
    assert Curves().names() == []
