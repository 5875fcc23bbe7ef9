"""What all preprocessors have in common: fitting, transforming datasets and batches, and being stored."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline.air import Checkpoint
from paceline.air.errors import CheckpointError, ConfigError, DataError
from paceline.data import preprocessors
from paceline.data.dataset import Dataset
from paceline.data.preprocessor import Preprocess, Preprocessor, PreprocessorNotFittedException
from paceline.data.preprocessor_state import decode, encode
from paceline.data.preprocessors import BatchMapper, Chain, MaxAbsScaler, MinMaxScaler, StandardScaler, Tokenizer
from tests.data.preprocessing import column, dataset

FitStatus = Preprocessor.FitStatus


class Centered(Preprocessor):
    """As users write them: pandas, and a statistic of their own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _fit(self, ds: Dataset) -> Preprocessor:
        self.stats_ = {"mean": ds.mean(self.name)}
        return self

    def _transform_pandas(self, df: pd.DataFrame) -> pd.DataFrame:
        df[self.name] -= self.stats_["mean"]
        return df


class Doubled(Preprocessor):
    """As users write them: numpy, and nothing to learn."""

    _is_fittable = False

    def _transform_numpy(self, np_data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        np_data["x"] *= 2
        return np_data


# Fitting


def test_fitting_and_its_states() -> None:
    ds = dataset(x=[1.0, 3.0])
    for preprocessor in (StandardScaler(["x"]), Centered("x")):
        assert preprocessor.fit_status() is FitStatus.NOT_FITTED
        assert preprocessor.fit(ds) is preprocessor
        assert preprocessor.fit_status() is FitStatus.FITTED
    assert Doubled().fit(ds).fit_status() is FitStatus.NOT_FITTABLE
    assert FitStatus.FITTED == "FITTED"


def test_a_class_that_keeps_what_it_learnt_under_any_name_is_fitted() -> None:
    class Own(Centered):
        def _fit(self, ds: Dataset) -> Preprocessor:
            self.seen = True
            return self

    assert Own("x").fit(dataset(x=[1.0])).fit_status() is FitStatus.FITTED


def test_fitting_again_warns_and_replaces() -> None:
    scaler = MinMaxScaler(["x"]).fit(dataset(x=[1, 2]))
    with pytest.warns(UserWarning, match=r"MinMaxScaler.*fitted"):
        scaler.fit(dataset(x=[5, 9]))
    assert scaler.stats_ == {"min(x)": 5, "max(x)": 9}


def test_fitting_again_in_vain_leaves_what_was_learnt() -> None:
    scaler = MinMaxScaler(["x", "y"]).fit(dataset(x=[1, 2], y=[1, 2]))
    learnt = dict(scaler.stats_)
    with pytest.warns(UserWarning, match="fitted before"), pytest.raises(DataError):
        scaler.fit(dataset(x=[5, 9], y=pa.nulls(2)))
    assert scaler.stats_ == learnt


def test_what_is_not_fitted_does_not_transform() -> None:
    with pytest.raises(PreprocessorNotFittedException, match=r"StandardScaler.*fit\(dataset\)"):
        StandardScaler(["x"]).transform(dataset(x=[1]))
    with pytest.raises(PreprocessorNotFittedException, match="transform_batch"):
        Centered("x").transform_batch({"x": np.array([1.0])})
    assert issubclass(PreprocessorNotFittedException, RuntimeError)


@pytest.mark.parametrize("method", ["fit", "transform", "fit_transform"])
def test_only_datasets_are_fitted_on(method: str) -> None:
    with pytest.raises(ConfigError, match=r"DataFrame.*paceline\.data\.from_pandas"):
        getattr(StandardScaler(["x"]), method)(pd.DataFrame({"x": [1.0]}))


def test_a_class_that_defines_too_little() -> None:
    class Empty(Preprocessor):
        pass

    class Plain(Preprocessor):
        _is_fittable = False

    with pytest.raises(NotImplementedError, match=r"Empty.*_fit"):
        Empty().fit(dataset(x=[1]))
    with pytest.raises(NotImplementedError, match=r"Plain.*_transform_pandas.*_transform_numpy"):
        Plain().transform_batch({"x": np.array([1])})


# Datasets


def test_transforming_is_lazy_and_leaves_the_dataset_as_it_is() -> None:
    ds = dataset(x=[1.0, 3.0, 5.0], kept=["a", "b", "c"])
    assert column(Centered("x").fit_transform(ds), "x").tolist() == [-2, 0, 2]
    assert column(Doubled().transform(ds), "x").tolist() == [2, 6, 10]
    assert column(ds, "x").tolist() == [1, 3, 5]

    class Broken(Doubled):
        def _transform_numpy(self, np_data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            raise KeyError("gone")

    broken = Broken().transform(ds)
    with pytest.raises(DataError, match=r"Broken.*KeyError.*'gone'"):
        broken.to_arrow()


def test_fitting_again_does_not_change_what_was_transformed_before() -> None:
    scaler = MinMaxScaler(["x"])
    transformed = scaler.fit_transform(dataset(x=[0.0, 4.0]))
    with pytest.warns(UserWarning, match="fitted before"):
        scaler.fit(dataset(x=[0.0, 1000.0]))
    assert column(transformed, "x").tolist() == [0, 1]


def test_rows_are_neither_added_nor_removed() -> None:
    class Shorter(Doubled):
        def _transform_numpy(self, np_data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {"x": np_data["x"][1:]}

    with pytest.raises(DataError, match=r"Shorter.*1 row of 2.*Dataset\.filter"):
        Shorter().transform(dataset(x=[1, 2])).to_arrow()


@pytest.mark.parametrize(
    ("preprocessor", "users"),
    [
        (StandardScaler(["x"]), False),
        (Tokenizer(["x"]), False),
        (Tokenizer(["x"], str.split), True),
        (BatchMapper(lambda batch: batch, "numpy"), True),
        (Chain(StandardScaler(["x"])), False),
        (Chain(StandardScaler(["x"]), Chain(Doubled())), True),
        (Doubled(), True),
    ],
)
def test_only_one_thread_at_a_time_runs_functions_of_users(preprocessor: Preprocessor, users: bool) -> None:
    assert Preprocess(preprocessor).native is not users


def test_where_time_went() -> None:
    scaler = StandardScaler(["x"])
    assert scaler.transform_stats() is None
    transformed = scaler.fit_transform(dataset(x=[1.0, 2.0]))
    list(transformed.iter_batches())
    assert scaler.transform_stats() == transformed.stats()
    del transformed
    assert scaler.transform_stats() is None


# Batches


@pytest.mark.parametrize("preprocessor", [Doubled(), MaxAbsScaler(["x"]).fit(dataset(x=[1]))])
def test_a_batch_comes_back_as_what_it_was(preprocessor: Preprocessor) -> None:
    factor = 2 if isinstance(preprocessor, Doubled) else 1
    numbers = np.array([1.0, 2.0])
    as_dict = preprocessor.transform_batch({"x": numbers})
    assert isinstance(as_dict, dict)
    assert as_dict["x"].tolist() == [factor, 2 * factor]
    as_table = preprocessor.transform_batch(pa.table({"x": numbers}))
    assert isinstance(as_table, pa.Table)
    assert as_table.column("x").to_pylist() == [factor, 2 * factor]
    as_chunk = preprocessor.transform_batch(pa.record_batch({"x": numbers}))
    assert isinstance(as_chunk, pa.RecordBatch)
    assert numbers.tolist() == [1, 2]


def test_a_frame_keeps_its_index_and_is_not_changed() -> None:
    frame = pd.DataFrame({"x": [1.0, 3.0]}, index=["first", "second"])
    fitted = Centered("x").fit(dataset(x=[2.0]))
    for preprocessor in (fitted, StandardScaler(["x"]).fit(dataset(x=[1.0, 3.0]))):
        result = preprocessor.transform_batch(frame)
        pd.testing.assert_frame_equal(result, pd.DataFrame({"x": [-1.0, 1.0]}, index=frame.index))
    assert frame["x"].tolist() == [1, 3]


def test_results_may_be_written_to() -> None:
    batch = StandardScaler(["x"]).fit(dataset(x=[1.0, 3.0])).transform_batch({"x": np.ones(2), "y": np.ones(2)})
    batch["x"] += 1
    batch["y"] += 1
    assert batch["y"].tolist() == [2, 2]


def test_what_is_no_batch() -> None:
    with pytest.raises(ConfigError, match=r"Doubled.*list"):
        Doubled().transform_batch([1, 2])


# Stored


def test_pickling_leaves_the_last_dataset_behind() -> None:
    scaler = StandardScaler(["x"])
    transformed = scaler.fit_transform(dataset(x=[1.0, 2.0]))
    again = pickle.loads(pickle.dumps(scaler))
    assert (again.stats_, again.transform_stats()) == (scaler.stats_, None)
    assert scaler.transform_stats() == transformed.stats()


def test_a_built_in_one_is_stored_as_plain_data_under_its_public_name(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_dict({"epoch": 1})
    checkpoint.set_preprocessor(StandardScaler(["x"]).fit(dataset(x=[1.0, 3.0])))
    checkpoint.to_directory(tmp_path)
    assert json.loads((tmp_path / ".preprocessor.json").read_text()) == {
        "class": "paceline.data.preprocessors.StandardScaler",
        "state": {"arguments": {"columns": ["x"]}, "stats": {"mean(x)": 2.0, "std(x)": 1.0}},
    }
    loaded = Checkpoint(tmp_path).get_preprocessor()
    assert loaded.fit_status() is FitStatus.FITTED
    assert loaded.transform_batch({"x": np.array([5.0])})["x"].tolist() == [3]


def test_one_of_the_users_own_is_stored_by_pickle(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_dict({"epoch": 1})
    checkpoint.set_preprocessor(Centered("x").fit(dataset(x=[1.0, 3.0])))
    checkpoint.to_directory(tmp_path)
    stored = json.loads((tmp_path / ".preprocessor.json").read_text())
    assert stored["class"] == "paceline.data.preprocessors.Preprocessor"
    assert stored["state"]["of"].endswith(".Centered")
    loaded = Checkpoint(tmp_path).get_preprocessor()
    assert loaded.transform_batch({"x": np.array([5.0])})["x"].tolist() == [3]


class Canary:
    """Sings if anybody unpickles it."""

    def __reduce__(self) -> Any:
        return (sys.exit, ("a pickle was loaded",))


def test_only_asking_for_the_preprocessor_loads_its_pickle(tmp_path: Path) -> None:
    state = {"$pickle": encode(Canary())["$pickle"], "of": "Canary"}
    content = {"class": "paceline.data.preprocessors.Preprocessor", "state": state}
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / ".preprocessor.json").write_text(json.dumps(content))
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.get_metadata()
    checkpoint.to_directory(tmp_path / "copy")
    pickle.loads(pickle.dumps(checkpoint))
    with pytest.raises(SystemExit, match="a pickle was loaded"):
        checkpoint.get_preprocessor()


@pytest.mark.parametrize(
    "name",
    ["os.system", "antigravity.X", "paceline.data.preprocessors", "paceline.data.preprocessors.scalers.StandardScaler",
     "paceline.data.preprocessors.loader", "paceline.data.preprocessors.Any", "", 5, None],
)  # fmt: skip
def test_a_name_in_a_file_is_only_looked_up_among_the_built_in_ones(tmp_path: Path, name: Any) -> None:
    (tmp_path / ".preprocessor.json").write_text(json.dumps({"class": name, "state": {}}))
    with pytest.raises(CheckpointError, match="preprocessor of"):
        Checkpoint(tmp_path).get_preprocessor()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"class": "paceline.data.preprocessors.StandardScaler", "state": {}}',
     '{"class": "paceline.data.preprocessors.StandardScaler", "state": {"arguments": {"$new": 1}, "stats": null}}'],
)  # fmt: skip
def test_a_damaged_file(tmp_path: Path, content: str) -> None:
    (tmp_path / ".preprocessor.json").write_text(content)
    with pytest.raises(CheckpointError, match="preprocessor of"):
        Checkpoint(tmp_path).get_preprocessor()


def double(x: int) -> int:
    return 2 * x


VALUES: list[Any] = [
    None, True, 5, -1.5, float("inf"), "text", [1, "a", None], ("a", 2.0), {"a": {"b": [1]}}, {1: "a", None: "b"},
    {"$odd": 1}, 2**100, b"bytes", [f"word {i}" for i in range(2000)], list(range(2000)), [2**70] * 2000,
    ["\ud800"] * 2000,
    {f"word {i}": i for i in range(2000)}, np.dtype("float32"), np.int8, pd.CategoricalDtype(["a", "b"], ordered=True),
    pd.Timestamp("2020-01-01").date(),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:30])
def test_values_that_states_may_hold(value: Any) -> None:
    stored = encode(value)
    again = decode(json.loads(json.dumps(stored)))
    assert again == value
    assert type(again) is type(value)
    assert "$pickle" not in json.dumps(stored)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "datetime64[s]"])
def test_arrays_that_states_may_hold(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    again = decode(json.loads(json.dumps(encode(array))))
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)
    column = pa.array(["a", None])
    assert decode(encode(column)).equals(column)


def test_functions_are_pickled() -> None:
    assert decode(json.loads(json.dumps(encode(double))))(4) == 8


def test_every_preprocessor_is_found_where_users_look() -> None:
    assert len(preprocessors.__all__) == 23  # with Preprocessor itself
    for name in preprocessors.__all__:
        assert getattr(preprocessors, name).__name__ == name
        assert name in dir(preprocessors)
    with pytest.raises(AttributeError, match="nothing"):
        preprocessors.nothing  # noqa: B018
