"""BatchMapper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import paceline.data
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors import BatchMapper


def double_frame(df: pd.DataFrame) -> pd.DataFrame:
    assert isinstance(df, pd.DataFrame)
    df["x"] *= 2
    return df


def double_arrays(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    assert isinstance(batch, dict)
    batch["x"] *= 2  # the batch is the function's own: what it was made of must not change
    return batch


def double_table(table: pa.Table) -> pa.Table:
    return table.set_column(0, "x", pc.multiply(table["x"], 2))


CASES = [(double_frame, "pandas"), (double_arrays, "numpy"), (double_table, "pyarrow")]


@pytest.mark.parametrize(("function", "batch_format"), CASES)
def test_datasets_and_batches_in_every_format(function: Any, batch_format: str) -> None:
    mapper = BatchMapper(function, batch_format)
    assert mapper.fit_status() == mapper.FitStatus.NOT_FITTABLE
    ds = paceline.data.range(50).map_batches(lambda batch: {"x": batch["id"]})
    for _ in range(2):
        assert mapper.transform(ds).to_pandas()["x"].tolist() == list(range(0, 100, 2))
    given = np.array([1, 2])
    assert mapper.transform_batch({"x": given})["x"].tolist() == [2, 4]
    assert mapper.transform_batch(pd.DataFrame({"x": given}))["x"].tolist() == [2, 4]
    assert mapper.transform_batch(pa.table({"x": given}))["x"].to_pylist() == [2, 4]
    assert given.tolist() == [1, 2]


def test_batch_size_is_that_of_the_batches() -> None:
    ds = paceline.data.range(100).repartition(1)
    sizes = BatchMapper(lambda batch: {"size": [len(batch["id"])]}, "numpy", batch_size=30).transform(ds)
    assert [row["size"] for row in sizes.take_all()] == [30, 30, 30, 10]


def test_a_function_may_leave_rows_out() -> None:
    odd = BatchMapper(lambda df: df[df["id"] % 2 == 1], "pandas")
    assert odd.transform(paceline.data.range(10)).to_pandas()["id"].tolist() == [1, 3, 5, 7, 9]
    assert len(odd.transform_batch(pd.DataFrame({"id": [1, 2, 3]}))) == 2


def test_errors_name_the_function() -> None:
    def broken(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise ZeroDivisionError("no")

    with pytest.raises(DataError, match="broken"):
        BatchMapper(broken, "numpy").transform(paceline.data.range(3)).take_all()
    with pytest.raises(DataError, match=r"BatchMapper.*lambda.*returned"):
        BatchMapper(lambda batch: 3, "numpy").transform_batch({"x": np.array([1])})


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match=r"fn.*\b3\b"):
        BatchMapper(3, "numpy")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch_format"):
        BatchMapper(double_frame, "polars")
    with pytest.raises(ConfigError, match="batch_size"):
        BatchMapper(double_frame, "pandas", batch_size=0)
