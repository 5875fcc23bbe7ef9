"""Mistakes that LightGBM itself would take without a word."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.air.errors import ConfigError, DataError, TrainingFailedError
from tests.train.lightgbm.boosting import classes, numbers, quick_trainer

BINARY = {"objective": "binary"}


def refused(frame: Any, told: str, **arguments: Any) -> None:
    with pytest.raises(TrainingFailedError, match=told) as caught:
        quick_trainer({"train": frame}, **{"params": BINARY, **arguments}).fit()
    assert isinstance(caught.value.__cause__, DataError)


@pytest.mark.parametrize("labels", [(1, 2), (0, 2), (0, 0.5)])
def test_two_classes_are_0_and_1(labels: tuple[float, float]) -> None:
    frame = classes()
    refused(
        frame.assign(y=frame.y.map(dict(enumerate(labels)))), "column 'y' .label_column. holds .*objective='binary'"
    )


def test_signs_are_two_classes_too() -> None:
    frame = classes()
    expected = quick_trainer({"train": frame}, params=BINARY).fit()
    result = quick_trainer({"train": frame.assign(y=2 * frame.y - 1)}, params=BINARY).fit()
    assert result.metrics["train-binary_logloss"] == pytest.approx(expected.metrics["train-binary_logloss"])


def test_negative_weights() -> None:
    frame = classes().assign(w=-1.0)
    refused(frame, "column 'w' .weight. has negative values", dmatrix_params={"train": {"weight": "w"}})


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("binary_loglos", "Did you mean 'binary_logloss'"),
        (["l2", "foo"], "names 'foo', which LightGBM does not know"),
        ("ndcg@5", r"'eval_at': \[5\]"),
    ],
)
def test_metrics_that_there_are_not(metric: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        quick_trainer({"train": numbers()}, params={"metric": metric})


@pytest.mark.parametrize("metric", ["AUC", "l2, r2", "None", ["average_precision"], None])
def test_metrics_that_there_are(metric: Any) -> None:
    quick_trainer({"train": numbers()}, params={"metric": metric})


def test_more_workers_than_rows() -> None:
    refused(classes(1), "1 rows for 2 workers, and rank . got none. LightGBM")


def test_leaves_have_rows() -> None:
    for name in ("min_data_in_leaf", "min_child_samples"):
        with pytest.raises(ConfigError, match="Use 1"):
            quick_trainer({"train": numbers()}, params={name: 0})
    quick_trainer({"train": numbers()}, params={"min_data_in_leaf": 0}, workers=1)
