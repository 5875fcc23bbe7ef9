"""Predictor: whichever kind of data comes in, the same kind comes out, and the preprocessor has seen it before."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from paceline import data
from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import Preprocessor, PreprocessorNotFittedException
from paceline.data.preprocessors import BatchMapper, Chain, LabelEncoder, MinMaxScaler, StandardScaler
from paceline.train.predictor import Predictor, PredictorNotSerializableException, prediction_columns
from paceline.train.torch import TorchPredictor
from tests.train.prediction.models import ArrowLine, Line, NumpyLine, PandasLine, line_checkpoint

X = np.array([1.0, 2.0, 3.0])
EXPECTED = [2.0, 4.0, 6.0]

LINES = pytest.mark.parametrize("line", [PandasLine, NumpyLine, ArrowLine])


# -- kinds of data ----------------------------------------------------------------------------


@LINES
def test_a_frame_is_answered_with_a_frame_that_has_its_index(line: type[Line]) -> None:
    answer = line().predict(pd.DataFrame({"x": X}, index=[7, 8, 9]))
    pd.testing.assert_frame_equal(answer, pd.DataFrame({"predictions": EXPECTED}, index=[7, 8, 9]))


@LINES
def test_a_dict_of_arrays_is_answered_with_the_only_column(line: type[Line]) -> None:
    answer = line().predict({"x": X})
    assert answer.tolist() == EXPECTED
    answer[0] = 0.0  # it is the caller's


@pytest.mark.parametrize("given", [{"x": X}, X], ids=["dict", "array"])
def test_numpy_is_answered_with_what_the_method_for_numpy_returns(given: Any) -> None:
    class Named(NumpyLine):
        def _predict_numpy(self, data: Any) -> Any:
            return {"predictions": super()._predict_numpy(data)}

    answer = Named().predict(given)
    assert list(answer) == ["predictions"]
    assert answer["predictions"].tolist() == EXPECTED


def test_names_of_columns_may_be_numbers() -> None:
    predictor = Predictor.from_pandas_udf(lambda frame: pd.DataFrame({"predictions": frame["0"] - frame["1"]}))
    assert predictor.predict({0: X, 1: X - 1}).tolist() == [1, 1, 1]
    predictor.set_preprocessor(BatchMapper(lambda batch: {**batch, "0": batch["0"] * 2}, "numpy"))
    assert predictor.predict({0: X, 1: X}).tolist() == X.tolist()
    with pytest.raises(DataError, match="same name"):
        predictor.predict({0: X, "0": X})


@LINES
@pytest.mark.parametrize("make", [pa.table, pa.RecordBatch.from_pydict], ids=["table", "record batch"])
def test_arrow_is_answered_with_arrow(line: type[Line], make: Any) -> None:
    given = make({"x": X})
    answer = line().predict(given)
    assert type(answer) is type(given)
    assert answer.to_pydict() == {"predictions": EXPECTED}


def test_a_bare_array_is_answered_with_an_array() -> None:
    answer = NumpyLine().predict(np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert answer.tolist() == [[2.0, 4.0], [6.0, 8.0]]


@pytest.mark.parametrize("shape", [(4,), (4, 2), (2, 2, 1)])
def test_a_bare_array_is_one_column_for_those_that_take_columns(shape: tuple[int, ...]) -> None:
    given = np.arange(np.prod(shape)).reshape(shape)
    assert Predictor.from_pandas_udf(lambda frame: frame * 2).predict(given).tolist() == (given * 2).tolist()
    seen = Predictor.from_pandas_udf(lambda frame: frame[["__value__"]])
    assert seen.predict(given).shape == shape


def test_several_columns_keep_their_names_for_an_array() -> None:
    predictor = Predictor.from_pandas_udf(
        lambda frame: pd.DataFrame({"predictions_0": frame["__value__"], "predictions_1": -frame["__value__"]})
    )
    assert {name: values.tolist() for name, values in predictor.predict(np.array([1, 2])).items()} == {
        "predictions_0": [1, 2],
        "predictions_1": [-1, -2],
    }


def test_arrays_per_row_become_a_tensor_column() -> None:
    class Twice(Line):
        def _predict_numpy(self, data: Any) -> Any:
            return np.stack([data["x"], data["x"]], axis=1)

    assert Twice().predict({"x": X}).tolist() == [[1, 1], [2, 2], [3, 3]]
    table = Twice().predict(pa.table({"x": X}))
    assert table.schema.field("predictions").type == pa.fixed_shape_tensor(pa.float64(), [2])
    assert [cell.tolist() for cell in Twice().predict(pd.DataFrame({"x": X}))["predictions"]] == [
        [1, 1],
        [2, 2],
        [3, 3],
    ]


def test_the_method_for_the_kind_that_came_in_is_used() -> None:
    class Both(PandasLine, ArrowLine):
        def _predict_arrow(self, data: pa.Table, power: int = 1) -> pa.Table:
            return pa.table({"predictions": ["arrow"] * data.num_rows})

    assert Both().predict(pa.table({"x": X}))["predictions"].to_pylist() == ["arrow"] * 3
    assert Both().predict(pd.DataFrame({"x": X}))["predictions"].tolist() == EXPECTED
    assert Both.preferred_batch_format() == "pyarrow"
    assert PandasLine.preferred_batch_format() == "pandas"
    assert NumpyLine.preferred_batch_format() == "numpy"


def test_what_is_converted_may_be_written_to() -> None:
    def overwrite(frame: pd.DataFrame) -> pd.DataFrame:
        frame["x"] += 1
        return frame.rename(columns={"x": "predictions"})

    given = pa.table({"x": X})
    assert Predictor.from_pandas_udf(overwrite).predict(given)["predictions"].to_pylist() == [2, 3, 4]
    assert given["x"].to_pylist() == X.tolist()


@LINES
def test_keywords_reach_the_model(line: type[Line]) -> None:
    assert line().predict({"x": X}, power=2).tolist() == [4.0, 16.0, 36.0]
    with pytest.raises(TypeError, match="powr"):
        line().predict({"x": X}, powr=2)


def test_columns_of_predictions() -> None:
    assert list(prediction_columns(np.zeros(3))) == ["predictions"]
    assert prediction_columns(np.zeros((3, 1)))["predictions"].shape == (3,)
    columns = prediction_columns(np.array([[1, 2], [3, 4]]))
    assert {name: values.tolist() for name, values in columns.items()} == {
        "predictions_0": [1, 3],
        "predictions_1": [2, 4],
    }


# -- preprocessors ----------------------------------------------------------------------------


@LINES
def test_the_checkpoints_preprocessor_is_applied_first(line: type[Line]) -> None:
    rows = data.from_items([{"x": 0.0}, {"x": 10.0}])
    scaler = MinMaxScaler(["x"]).fit(rows)
    predictor = line.from_checkpoint(line_checkpoint(scaler))
    assert predictor.get_preprocessor() is scaler
    for given in (pd.DataFrame({"x": [5.0]}), pa.table({"x": [5.0]})):
        assert np.asarray(predictor.predict(given)["predictions"]).tolist() == [1.0]
    assert predictor.predict({"x": np.array([5.0])}).tolist() == [1.0]
    predictor.set_preprocessor(None)
    assert predictor.predict({"x": np.array([5.0])}).tolist() == [10.0]


def test_a_chain_is_applied_in_order() -> None:
    rows = data.from_items([{"x": 0.0}, {"x": 10.0}])
    chain = Chain(MinMaxScaler(["x"]), BatchMapper(lambda batch: {"x": batch["x"] + 100}, "numpy")).fit(rows)
    assert PandasLine(preprocessor=chain).predict({"x": np.array([5.0])}).tolist() == [201.0]


@pytest.mark.parametrize("in_chain", [True, False])
def test_the_label_that_a_preprocessor_encodes_need_not_be_there(in_chain: bool) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "kind": ["b", "a", "c"]})
    encoder = LabelEncoder("kind")
    preprocessor = Chain(encoder, StandardScaler(["x"])) if in_chain else encoder
    predictor = Predictor.from_pandas_udf(lambda rows: rows)
    predictor.set_preprocessor(preprocessor.fit(data.from_pandas(frame)))
    with_label = predictor.predict(frame)
    assert with_label["kind"].tolist() == [1, 0, 2]
    assert predictor.predict(frame[["x"]]).equals(with_label[["x"]])
    assert encoder.inverse_transform_batch({"kind": np.array([2.0, 0.0])})["kind"].tolist() == ["c", "a"]


def test_a_function_of_frames_is_called_after_its_preprocessor() -> None:
    predictor = Predictor.from_pandas_udf(lambda frame: frame.rename(columns={"x": "predictions"}))
    predictor.set_preprocessor(MinMaxScaler(["x"]).fit(data.from_items([{"x": 0.0}, {"x": 4.0}])))
    assert predictor.predict(pd.DataFrame({"x": [1.0, 2.0]}))["predictions"].tolist() == [0.25, 0.5]


@LINES
def test_a_preprocessor_must_not_leave_rows_out(line: type[Line]) -> None:
    predictor = line(preprocessor=BatchMapper(lambda frame: frame[frame["x"] > 1], "pandas"))
    for given in ({"x": X}, pd.DataFrame({"x": X}), pa.table({"x": X})):
        with pytest.raises(DataError, match=r"BatchMapper.*2 rows of 3"):
            predictor.predict(given)


class Shift(Preprocessor):
    """As people write them: numpy code that takes what there is."""

    _is_fittable = False

    def _transform_numpy(self, np_data: Any) -> Any:
        return np_data + 1


class Seen(Preprocessor):
    """With a `transform_batch` of its own."""

    _is_fittable = False
    kinds: tuple[type, ...] = ()

    def transform_batch(self, batch: Any) -> Any:
        self.kinds += (type(batch),)
        return batch


@pytest.mark.parametrize(
    "preprocessor",
    [
        Shift(),
        BatchMapper(lambda array: array + 1, "numpy"),
        BatchMapper(lambda frame: frame + 1, "pandas"),
        Chain(
            LabelEncoder("kind").fit(data.from_items([{"kind": "a"}])), BatchMapper(lambda array: array + 1, "numpy")
        ),
        Chain(BatchMapper(lambda frame: frame - 1, "pandas"), Shift(), Shift()),
    ],
    ids=["class", "numpy", "pandas", "label", "chain"],
)
@pytest.mark.parametrize("line", [NumpyLine, lambda **given: _doubling_frames(**given)], ids=["numpy", "pandas"])
def test_a_bare_array_goes_through_a_preprocessor(line: Any, preprocessor: Preprocessor) -> None:
    for given in (X, np.array([[1.0, 2.0], [3.0, 4.0]])):
        before = given.copy()
        assert line(preprocessor=preprocessor).predict(given).tolist() == ((given + 1) * 2).tolist()
        assert given.tolist() == before.tolist()


def _doubling_frames(preprocessor: Preprocessor) -> Predictor:
    predictor = Predictor.from_pandas_udf(lambda frame: frame * 2)
    predictor.set_preprocessor(preprocessor)
    return predictor


def test_a_preprocessor_with_its_own_method_for_batches_gets_them_as_they_are() -> None:
    preprocessor = Seen()
    assert NumpyLine(preprocessor=preprocessor).predict(X).tolist() == EXPECTED
    assert preprocessor.kinds == (np.ndarray,)


def test_a_preprocessor_of_named_columns_cannot_take_a_bare_array() -> None:
    scaler = StandardScaler(["x"]).fit(data.from_items([{"x": 0.0}, {"x": 4.0}]))
    with pytest.raises(DataError, match=r"'x'.*bare array.*StandardScaler.*dict"):
        NumpyLine(preprocessor=scaler).predict(X)


def test_an_unfitted_preprocessor_is_told() -> None:
    with pytest.raises(PreprocessorNotFittedException, match=r"StandardScaler.*fitted"):
        NumpyLine(preprocessor=StandardScaler(["x"])).predict({"x": X})


def test_what_is_no_preprocessor_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"BatchMapper.*function"):
        NumpyLine().set_preprocessor(len)  # type: ignore[arg-type]


# -- what cannot work -------------------------------------------------------------------------

WRONG: list[tuple[Any, str]] = [
    ([1.0, 2.0], r"\blist\b.*pandas\.DataFrame\(rows\)"),
    (None, "NoneType"),
    (pd.Series(X), r"pandas\.Series.*to_frame\(\)"),
    (torch.zeros(3), r"torch\.Tensor.*numpy\(\)"),
    (np.array(1.0), "single value"),
    ({}, "dict.*no columns"),
    ({"x": [1.0]}, "'x'.*list.*numpy"),
    ({"x": X, "y": X[:1]}, r"\{'x': 3, 'y': 1\}"),
]


@pytest.mark.parametrize(
    ("given", "message"), WRONG, ids=[type(given).__name__ + str(i) for i, (given, _) in enumerate(WRONG)]
)
def test_data_of_another_kind_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NumpyLine().predict(given)


def test_for_a_dataset_there_is_another_class() -> None:
    with pytest.raises(ConfigError, match=r"BatchPredictor\.from_checkpoint"):
        NumpyLine().predict(data.range(3))  # type: ignore[arg-type]


@LINES
def test_two_columns_of_one_name_are_refused(line: type[Line]) -> None:
    with pytest.raises(DataError, match=r"columns.*'x'"):
        line().predict(pd.DataFrame([[1.0, 2.0]], columns=["x", "x"]))


BAD_ANSWERS: list[tuple[Any, str]] = [
    (lambda frame: frame.head(1), r"PandasFunctionPredictor.*\b1 rows.*\b3\b"),
    (lambda frame: np.zeros(4), r"'predictions'.*\b4 rows.*\b3\b"),
    (lambda frame: None, "PandasFunctionPredictor.*None.*return"),
    (lambda frame: frame["x"], r"pandas\.Series.*DataFrame"),
    (lambda frame: np.float64(1), r"numpy\.float64"),
    (lambda frame: np.array(1), "single value"),
    (lambda frame: {}, r"returned.*\bdict\b"),
]


@pytest.mark.parametrize(("function", "message"), BAD_ANSWERS, ids=[message[-30:] for _, message in BAD_ANSWERS])
def test_an_answer_of_the_wrong_form_is_an_error(function: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Predictor.from_pandas_udf(function).predict(pd.DataFrame({"x": X}))


@pytest.mark.parametrize("given", [3, pd.DataFrame])
def test_what_is_no_function_of_frames_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"from_pandas_udf.*function"):
        Predictor.from_pandas_udf(given)


def test_a_predictor_that_predicts_nothing_says_what_it_lacks() -> None:
    with pytest.raises(NotImplementedError, match=r"Line.*_predict_pandas, _predict_numpy"):
        Line().predict({"x": X})


def test_from_checkpoint_must_be_defined() -> None:
    class Nowhere(Predictor):
        def _predict_numpy(self, data: Any) -> Any:
            return data

    with pytest.raises(TypeError, match="from_checkpoint"):
        Nowhere()  # type: ignore[abstract]


# -- pickling ---------------------------------------------------------------------------------


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_a_predictor_stays_in_its_process(send: Any) -> None:
    with pytest.raises(PredictorNotSerializableException, match=r"checkpoint.*ArrowLine\.from_checkpoint"):
        send(ArrowLine())


def test_a_subclass_need_not_call_the_constructor_of_the_base() -> None:
    class Careless(Predictor):
        def __init__(self) -> None:
            pass

        @classmethod
        def from_checkpoint(cls, checkpoint: Checkpoint) -> Self:
            return cls()

        def _predict_numpy(self, data: Any) -> Any:
            return data

    assert Careless().get_preprocessor() is None
    assert Careless().predict(X).tolist() == X.tolist()


def test_repr_shows_the_model_and_the_preprocessor() -> None:
    scaler = MinMaxScaler(["x"])
    assert repr(PandasLine(preprocessor=scaler)) == f"PandasLine(preprocessor={scaler!r})"
    shown = repr(TorchPredictor(torch.nn.Linear(2, 1)))
    assert shown == f"TorchPredictor(model={torch.nn.Linear(2, 1)!r}, use_gpu=False, preprocessor=None)"
