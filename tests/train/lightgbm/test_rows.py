"""Labels and weights that LightGBM itself would take without a word."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.air.errors import DataError, TrainingFailedError
from tests.train.lightgbm.boosting import classes, quick_trainer

BINARY = {"objective": "binary"}


def refused(frame: Any, told: str, **arguments: Any) -> None:
    with pytest.raises(TrainingFailedError, match=told) as caught:
        quick_trainer({"train": frame}, **{"params": BINARY, **arguments}).fit()
    assert isinstance(caught.value.__cause__, DataError)


@pytest.mark.parametrize("labels", [(1, 2), (0, 2), (0, 0.5)])
def test_two_classes_are_0_and_1(labels: tuple[float, float]) -> None:
    frame = classes()
    refused(frame.assign(y=frame.y.map(dict(enumerate(labels)))), "'y' .label_column.*objective='binary'")


def test_signs_are_two_classes_too() -> None:
    frame = classes()
    expected = quick_trainer({"train": frame}, params=BINARY, inline=True).fit()
    result = quick_trainer({"train": frame.assign(y=2 * frame.y - 1)}, params=BINARY, inline=True).fit()
    assert result.metrics["train-binary_logloss"] == pytest.approx(expected.metrics["train-binary_logloss"])


def test_negative_weights() -> None:
    frame = classes().assign(w=-1.0)
    refused(frame, "'w' .weight.*negative", dmatrix_params={"train": {"weight": "w"}})


def test_more_workers_than_rows() -> None:
    refused(classes(1), "1 row.*2 workers")
