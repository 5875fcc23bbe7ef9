"""Chain: the same as its members one after the other, with as few passes over the data as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import paceline.data
from paceline.air.errors import ConfigError, DataError
from paceline.data.block import ReadRequest
from paceline.data.dataset import Dataset
from paceline.data.preprocessor import Preprocessor, PreprocessorNotFittedException
from paceline.data.preprocessors import (
    BatchMapper,
    Chain,
    Concatenator,
    MinMaxScaler,
    OneHotEncoder,
    SimpleImputer,
    StandardScaler,
)
from paceline.data.sources.computed import TableSource


class CountedSource(TableSource):
    """Knows how often each block was read, and which columns of it."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table, block_rows=10)
        self.reads: Counter[int] = Counter()
        self.columns: set[str] = set()

    def read(self, block: int, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        self.reads[block] += 1
        self.columns.update(request.columns or self.schema().names)
        return super().read(block, request)

    @property
    def passes(self) -> int:
        return self.reads[max(self.reads)]  # of the first block alone, some rows may be read to know the schema


def data() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {"x": rng.normal(3, 2, 60), "y": rng.random(60), "c": rng.choice(["a", "b"], 60), "unused": range(60)}
    )


def counted() -> tuple[Dataset, CountedSource]:
    source = CountedSource(pa.Table.from_pandas(data(), preserve_index=False))
    return Dataset(source), source


class Centered(Preprocessor):
    """As a user would write one."""

    def __init__(self, column: str) -> None:
        self.column = column

    def _fit(self, ds: Any) -> Preprocessor:
        self.stats_ = {"mean": ds.mean(self.column)}
        return self

    def _transform_pandas(self, df: pd.DataFrame) -> pd.DataFrame:
        return df.assign(**{self.column: df[self.column] - self.stats_["mean"]})


def one_by_one(*members: Preprocessor) -> pd.DataFrame:
    ds = paceline.data.from_pandas(data())
    for member in members:
        ds = member.fit_transform(ds)
    return ds.to_pandas()


def test_members_that_do_not_depend_on_each_other_are_fitted_in_one_pass() -> None:
    ds, source = counted()
    joined = Concatenator("xy", include=["x", "y"])
    chain = Chain(OneHotEncoder(["c"]), StandardScaler(["x"]), MinMaxScaler(["y"]), joined)
    chain.fit(ds)
    assert source.passes == 1
    assert source.columns == {"c", "x", "y"}
    members = OneHotEncoder(["c"]), StandardScaler(["x"]), MinMaxScaler(["y"]), joined
    pd.testing.assert_frame_equal(chain.transform(ds).to_pandas(), one_by_one(*members))


def test_a_member_that_needs_what_an_earlier_one_makes_is_fitted_on_that() -> None:
    ds, source = counted()
    chain = Chain(OneHotEncoder(["c"]), StandardScaler(["x"]), MinMaxScaler(["x", "c_a"]), StandardScaler(["y"]))
    chain.fit(ds)
    assert source.passes == 2
    members = OneHotEncoder(["c"]), StandardScaler(["x"]), MinMaxScaler(["x", "c_a"]), StandardScaler(["y"])
    pd.testing.assert_frame_equal(chain.transform(ds).to_pandas(), one_by_one(*members))


def test_missing_values_can_be_filled_before_encoding() -> None:
    ds = paceline.data.from_items([{"c": "a"}, {"c": None}, {"c": "a"}, {"c": "b"}])
    chain = Chain(SimpleImputer(["c"], strategy="most_frequent"), OneHotEncoder(["c"]))
    assert chain.fit_transform(ds).to_pandas().to_dict("list") == {"c_a": [1, 1, 1, 0], "c_b": [0, 0, 0, 1]}


def test_after_a_function_everything_may_have_changed() -> None:
    ds, _ = counted()
    chain = Chain(BatchMapper(lambda df: df.assign(x=df["x"] * 10), "pandas"), MinMaxScaler(["x"]))
    chain.fit(ds)
    assert chain.preprocessors[1].stats_["max(x)"] == pytest.approx(data()["x"].max() * 10)


def test_preprocessors_of_users_take_part() -> None:
    ds, _ = counted()
    chain = Chain(StandardScaler(["y"]), Centered("x"), MinMaxScaler(["x"]))
    assert chain.fit_status() == chain.FitStatus.NOT_FITTED
    result = chain.fit_transform(ds).to_pandas()
    pd.testing.assert_frame_equal(result, one_by_one(StandardScaler(["y"]), Centered("x"), MinMaxScaler(["x"])))
    assert chain.fit_status() == chain.FitStatus.FITTED


def test_chains_of_chains() -> None:
    ds, source = counted()
    chain = Chain(Chain(StandardScaler(["x"]), OneHotEncoder(["c"])), Chain(MinMaxScaler(["y"])))
    chain.fit(ds)
    assert source.passes == 1
    members = StandardScaler(["x"]), OneHotEncoder(["c"]), MinMaxScaler(["y"])
    pd.testing.assert_frame_equal(chain.transform(ds).to_pandas(), one_by_one(*members))


def test_fit_status() -> None:
    ds, _ = counted()
    fitted = StandardScaler(["x"]).fit(ds)
    status = Preprocessor.FitStatus
    assert Chain().fit_status() == status.NOT_FITTABLE
    assert Chain(Concatenator(include=["x"])).fit_status() == status.NOT_FITTABLE
    assert Chain(MinMaxScaler(["y"])).fit_status() == status.NOT_FITTED
    assert Chain(fitted, Concatenator(include=["x"])).fit_status() == status.FITTED
    partly = Chain(fitted, MinMaxScaler(["y"]))
    assert partly.fit_status() == status.PARTIALLY_FITTED
    with pytest.raises(PreprocessorNotFittedException, match=r"Chain.*fitted"):
        partly.transform(ds)
    with pytest.raises(PreprocessorNotFittedException, match=r"Chain.*fitted"):
        partly.transform_batch(data())
    with pytest.warns(UserWarning, match=r"Chain.*fitted"):
        partly.fit(ds)
    assert partly.fit_status() == status.FITTED


def test_a_single_batch() -> None:
    ds, _ = counted()
    chain = Chain(StandardScaler(["x"]), OneHotEncoder(["c"])).fit(ds)
    batch = data().iloc[20:30]
    expected = chain.transform(ds).to_pandas().iloc[20:30]
    pd.testing.assert_frame_equal(chain.transform_batch(batch), expected)


def test_fitting_anew_does_not_change_what_was_transformed_before() -> None:
    ds, _ = counted()
    chain = Chain(StandardScaler(["x"]), MinMaxScaler(["y"]))
    transformed = chain.fit_transform(ds)
    expected = transformed.to_pandas()
    with pytest.warns(UserWarning, match="fitted before"):
        chain.fit(paceline.data.from_items([{"x": 1.0, "y": 2.0}, {"x": 3.0, "y": 9.0}]))
    pd.testing.assert_frame_equal(transformed.to_pandas(), expected)


def test_errors_name_the_member() -> None:
    ds, _ = counted()
    with pytest.raises(DataError, match=r"MinMaxScaler.*'z'"):
        Chain(StandardScaler(["x"]), MinMaxScaler(["z"])).fit(ds)
    with pytest.raises(DataError, match=r"StandardScaler.*'c'"):
        Chain(MinMaxScaler(["x"]), StandardScaler(["c"])).fit(ds)
    with pytest.raises(ConfigError, match="one by one"):
        Chain([StandardScaler(["x"])])  # type: ignore[arg-type]
