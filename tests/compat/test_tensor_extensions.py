"""The tensor types of older programs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import ConfigError
from paceline.data.extensions import (
    ArrowTensorArray,
    ArrowTensorType,
    ArrowVariableShapedTensorArray,
    ArrowVariableShapedTensorType,
    TensorArray,
    TensorArrayElement,
)


def test_arrow_types_stand_for_those_in_use() -> None:
    assert ArrowTensorType((2, 3), pa.float32()) == pa.fixed_shape_tensor(pa.float32(), [2, 3])
    images = ArrowTensorArray.from_numpy(np.arange(12.0).reshape(2, 2, 3))
    assert isinstance(images, ArrowTensorArray)
    assert isinstance(images.type, ArrowTensorType)
    assert not isinstance(pa.int8(), ArrowTensorType)
    dataset = data.from_arrow(pa.table({"image": images}))
    assert dataset.take(1)[0]["image"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_arrays_of_several_shapes_make_a_ragged_column() -> None:
    cells = [np.ones((1, 2)), np.zeros((2, 2))]
    for made in (ArrowTensorArray.from_numpy(cells), ArrowVariableShapedTensorArray.from_numpy(cells)):
        assert isinstance(made.type, ArrowVariableShapedTensorType)
        assert made.type == ArrowVariableShapedTensorType(np.float64, ndim=2)
        assert [row["x"].shape for row in data.from_arrow(pa.table({"x": made})).take_all()] == [(1, 2), (2, 2)]


def test_a_column_of_a_frame_is_made_of_arrays() -> None:
    def with_image(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.set_axis(frame.index + 7)  # assigned by place, whatever the index is
        frame["image"] = TensorArray(np.stack([np.full((2, 2), number) for number in frame["id"]]))
        return frame

    rows = data.range(3).map_batches(with_image, batch_format="pandas").take_all()
    assert [row["image"].tolist() for row in rows] == [[[n, n], [n, n]] for n in range(3)]
    column = TensorArray([[1, 2], [3, 4]])
    assert isinstance(column[0], TensorArrayElement)
    assert column.to_numpy().tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ConfigError, match=r"\(1,\), \(2,\)"):
        TensorArray([[1], [2, 3]]).to_numpy()


def test_what_has_no_counterpart_says_so() -> None:
    with pytest.raises(ImportError, match=r"TensorDtype.*dtype object"):
        from paceline.data.extensions import TensorDtype
    with pytest.raises(ImportError, match=r"TensorDtype.*dtype object"):
        from paceline.data.extensions.tensor_extension import TensorDtype  # noqa: F401
