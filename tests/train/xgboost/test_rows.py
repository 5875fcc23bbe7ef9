"""Mistakes in the rows: the message names the dataset and the column, not a line of XGBoost's code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.air.errors import DataError, TrainingFailedError
from tests.train.xgboost.boosting import quick_trainer

BINARY = {"objective": "binary:logistic"}


def noisy(rows: int = 200) -> pd.DataFrame:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=rows), "b": random.normal(size=rows)})
    return frame.assign(y=(frame.a + random.normal(size=rows) > 0).astype(int))


def failure(frames: dict[str, Any], **arguments: Any) -> TrainingFailedError:
    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(frames, num_boost_round=2, inline=True, **{"params": BINARY, **arguments}).fit()
    return caught.value


def test_classes_are_counted_from_0() -> None:
    frame = noisy()
    error = failure({"train": frame.assign(y=frame.y + 1)})
    assert isinstance(error.__cause__, DataError)
    assert re.search(r"'train'.*'y' \(label_column\).*1 to 2", str(error))


def test_negative_weights() -> None:
    error = failure({"train": noisy().assign(w=-1.0)}, dmatrix_params={"train": {"weight": "w"}})
    assert re.search(r"'train'.*'w' \(weight\).*negative", str(error))


def test_no_rows() -> None:
    assert re.search("'train'.*rows", str(failure({"train": noisy()[:0]})))
