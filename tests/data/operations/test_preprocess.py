"""A preprocessor as a step of a plan."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.air.errors import DataError
from paceline.data.dataset_transforms import Transforms
from paceline.data.preprocessor import Preprocess, Preprocessor
from tests.data.transforming import dataset, rows


class Doubler(Preprocessor):
    _is_fittable = False

    def __init__(self, row_local: bool, error: Exception | None = None) -> None:
        self._row_local = row_local
        self._error = error

    def _transform_numpy(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._error is not None:
            raise self._error
        return {"x": 2 * batch["a"]}


def test_a_preprocessor_as_a_step() -> None:
    local = Transforms(dataset().plan.then(Preprocess(Doubler(row_local=True))))
    assert [row["x"] for row in rows(local)] == [2 * i for i in range(10)]
    assert local.plan.row_local
    assert local.plan.row_counts() == [6, 4]
    assert not dataset().plan.then(Preprocess(Doubler(row_local=False))).knows_counts


@pytest.mark.parametrize("error", [DataError("column 'a' holds text"), RuntimeError("column 'a' holds text")])
def test_a_preprocessor_that_fails_names_the_place(error: Exception) -> None:
    with pytest.raises(DataError, match="column 'a' holds text") as caught:
        rows(Transforms(dataset().plan.then(Preprocess(Doubler(True, error)))))
    assert dataset().plan.blocks()[0].name in str(caught.value)
