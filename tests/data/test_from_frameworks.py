"""Datasets from what other libraries hold."""

from __future__ import annotations

import subprocess
import sys

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import ConfigError

# from_tf is tested with the rest of what needs TensorFlow, in test_tf_batches.py.


def test_from_polars() -> None:
    assert data.from_polars(pl.DataFrame({"x": [1, 2]})).take_all() == [{"x": 1}, {"x": 2}]
    assert data.from_polars([pl.DataFrame({"x": [1]}), pl.DataFrame({"x": [2]})]).count() == 2


def test_dask_there_and_back() -> None:
    dask_frames = pytest.importorskip("dask.dataframe")
    frame = dask_frames.from_pandas(pd.DataFrame({"x": range(10)}), npartitions=3)
    dataset = data.from_dask(frame)
    assert dataset.sum("x") == 45
    assert dataset.repartition(2).to_dask().npartitions == 2
    assert dataset.to_dask().x.sum().compute() == 45


def test_to_dask_without_dask_says_what_to_install() -> None:
    code = "import sys; sys.modules['dask'] = None; from paceline import data; data.range(3).to_dask()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'dask[dataframe]'" in done.stderr.splitlines()[-1]


class FrameOfSpark4:
    def toArrow(self) -> pa.Table:  # noqa: N802  (Spark's own name)
        return pa.table({"x": [1, 2, 3]})


class FrameOfSpark3:
    def toPandas(self) -> pd.DataFrame:  # noqa: N802
        return pd.DataFrame({"x": [1, 2, 3]})


@pytest.mark.parametrize("frame", [FrameOfSpark4(), FrameOfSpark3()])
def test_from_spark_takes_arrow_or_pandas(frame: object) -> None:
    assert data.from_spark(frame, parallelism=2).sum("x") == 6


def test_other_objects_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"from_spark.*list"):
        data.from_spark([1])
    with pytest.raises(ConfigError, match=r"from_dask.*list"):
        data.from_dask([1])
