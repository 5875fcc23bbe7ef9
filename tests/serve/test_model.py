"""Models of every library behind the server: the answers are the library's own."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression

import paceline.data
from paceline import serve
from paceline.air import Checkpoint, Result
from paceline.air.errors import ConfigError
from paceline.data.preprocessors import Chain, Concatenator, LabelEncoder, OneHotEncoder, SimpleImputer, StandardScaler
from paceline.serve import json_body
from paceline.serve.columns import input_columns
from paceline.serve.model import loaded_model
from paceline.train.predictor import Predictor
from paceline.train.sklearn import SklearnPredictor
from paceline.train.torch import TorchCheckpoint, TorchPredictor
from paceline.train.xgboost import XGBoostCheckpoint, XGBoostPredictor
from tests.serve.serving import ARROW, Server
from tests.serve.test_requests import stream

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")


@contextmanager
def served(*what: Any, **settings: Any) -> Iterator[Server]:
    running = serve.run(*what, port=0, blocking=False, **settings)
    assert running is not None
    with running:
        yield Server(running)


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dict("records")  # type: ignore[return-value]


def predictions(answer: Any) -> Any:
    assert answer.status == 200, answer.body
    columns = answer.json
    return columns["predictions"] if list(columns) == ["predictions"] else np.column_stack(list(columns.values()))


@pytest.fixture(scope="module")
def cancer() -> tuple[pd.DataFrame, Any]:
    data = load_breast_cancer(as_frame=True)
    return data.data, data.target


def xgboost_model(frame: pd.DataFrame, target: Any, **params: Any) -> Any:
    return xgboost.train({"max_depth": 3, **params}, xgboost.DMatrix(frame, target, enable_categorical=True), 5)


def test_xgboost_from_a_directory(cancer: Any, tmp_path: Path) -> None:
    from paceline.train.xgboost import XGBoostCheckpoint, XGBoostPredictor

    frame, target = cancer
    model = xgboost_model(frame, target, objective="binary:logistic")
    expected = model.predict(xgboost.DMatrix(frame))
    XGBoostCheckpoint.from_model(model, path=tmp_path / "model")
    with served(XGBoostPredictor, tmp_path / "model") as server:
        assert predictions(server.predict(rows(frame))) == pytest.approx(expected)
        assert predictions(server.predict(frame.to_numpy().tolist())) == pytest.approx(expected)
        answer = server.ask("POST", "/predict", stream(pa.Table.from_pandas(frame)), ARROW)
        assert pa.ipc.open_stream(answer.body).read_all()["predictions"].to_numpy() == pytest.approx(expected)
        large = pd.concat([frame] * 10)
        assert predictions(server.predict(rows(large))) == pytest.approx(np.tile(expected, 10))
        assert predictions(server.predict(rows(frame[:1]))) == pytest.approx(expected[:1])

        few = rows(frame[:1])[0]
        del few["mean area"]
        assert "missing: 'mean area'" in server.predict([few]).reason
        assert re.search("'mean area'.*numbers.*row 0", server.predict([{**few, "mean area": "big"}]).reason)
        assert "unknown: 'target'" in server.predict([{**few, "mean area": 1, "target": 0}]).reason
        gap = server.predict([{**few, "mean area": None}])
        missing = frame[:1].assign(**{"mean area": np.nan})
        assert predictions(gap) == pytest.approx(model.predict(xgboost.DMatrix(missing)))


def test_rows_that_were_read_for_a_model_with_another_order_of_columns(cancer: Any) -> None:
    """A request may have been read for the model before, and waits while the model is changed."""
    frame, target = cancer[0].iloc[:, :4], cancer[1]
    before = loaded_model(XGBoostPredictor(xgboost_model(frame, target)), "before")
    turned = xgboost_model(frame[frame.columns[::-1]], target)
    after = loaded_model(XGBoostPredictor(turned), "after")
    few = frame[:3]
    old, new = (
        json_body.decode(json.dumps(rows(few)).encode(), model.columns, 10, nameless=False) for model in (before, after)
    )
    assert old.key != new.key
    expected = turned.inplace_predict(few[few.columns[::-1]].to_numpy())
    for each in (old, new):
        assert after.predict([each, each]).column(0).to_pylist() == [*expected, *expected]


def test_the_predictor_is_found_by_the_checkpoint(cancer: Any, tmp_path: Path) -> None:
    from paceline.train.xgboost import XGBoostCheckpoint

    XGBoostCheckpoint.from_model(xgboost_model(*cancer), path=tmp_path / "model")
    for what in (tmp_path / "model", Checkpoint(tmp_path / "model")):
        with served(what) as server:
            assert server.ask("GET", "/model").json["predictor"] == "XGBoostPredictor"


def test_several_values_for_a_row(tmp_path: Path) -> None:
    from paceline.train.xgboost import XGBoostCheckpoint

    frame, target = load_wine(return_X_y=True, as_frame=True)
    model = xgboost_model(frame, target, objective="multi:softprob", num_class=3)
    XGBoostCheckpoint.from_model(model, path=tmp_path / "model")
    with served(tmp_path / "model") as server:
        answer = server.predict(rows(frame))
        assert list(answer.json) == ["predictions_0", "predictions_1", "predictions_2"]
        assert predictions(answer) == pytest.approx(model.predict(xgboost.DMatrix(frame)))


def test_lightgbm(cancer: Any, tmp_path: Path) -> None:
    from paceline.train.lightgbm import LightGBMCheckpoint

    frame, target = cancer
    model = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(frame, target), 5)
    LightGBMCheckpoint.from_model(model, path=tmp_path / "model")
    with served(tmp_path / "model") as server:
        names = [column["name"] for column in server.ask("GET", "/model").json["columns"]]
        given = frame.set_axis(names, axis=1)
        assert predictions(server.predict(rows(given))) == pytest.approx(model.predict(frame))
        assert predictions(server.predict(rows(given[3:4]))) == pytest.approx(model.predict(frame[3:4]))
        assert "missing: " in server.predict([{names[0]: 1}]).reason


def test_scikit_learn_and_arguments_for_predict(cancer: Any, tmp_path: Path) -> None:
    from paceline.train.sklearn import SklearnCheckpoint, SklearnPredictor

    frame, target = cancer
    model = RandomForestClassifier(5, random_state=0).fit(frame, target)
    SklearnCheckpoint.from_estimator(model, path=tmp_path / "model")
    harmless = ["sklearn.tree._tree.Tree"]
    with served(SklearnPredictor, str(tmp_path / "model"), trust=harmless) as server:
        assert predictions(server.predict(rows(frame))) == model.predict(frame).tolist()
        assert "missing: 'worst area'" in server.predict(rows(frame.drop(columns="worst area")[:1])).reason
    arguments = {"method": "predict_proba"}
    with served(SklearnPredictor, tmp_path / "model", trust=harmless, predict_kwargs=arguments) as server:
        assert predictions(server.predict(rows(frame))) == pytest.approx(model.predict_proba(frame))


def test_a_network_gets_numbers_in_the_type_of_its_weights(tmp_path: Path) -> None:
    network = torch.nn.Linear(2, 1)
    checkpoint = TorchCheckpoint.from_state_dict(network.state_dict())
    checkpoint.to_directory(tmp_path / "weights")
    inputs = [[1, 2], [3, 4.5]]
    expected = network(torch.tensor(inputs)).tolist()
    with served(TorchPredictor, tmp_path / "weights", model=torch.nn.Linear(2, 1)) as server:
        assert np.array(predictions(server.predict(inputs))) == pytest.approx(np.array(expected))
        assert np.array(predictions(server.predict([{"x": row} for row in inputs]))) == pytest.approx(
            np.array(expected)
        )
        whole = network(torch.tensor([[1.0, 2.0]])).tolist()
        assert np.array(predictions(server.predict([[1, 2]]))) == pytest.approx(np.array(whole))


def test_whole_numbers_stay_whole_for_a_network_with_a_table() -> None:
    network = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Flatten(), torch.nn.Linear(2, 1))
    with served(TorchPredictor(network)) as server:
        expected = network(torch.tensor([[3], [4]])).detach().numpy()
        assert np.array(predictions(server.predict([[3], [4]]))) == pytest.approx(expected)


def test_columns_are_those_before_the_preprocessor(tmp_path: Path) -> None:
    from paceline.train.xgboost import XGBoostCheckpoint

    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"size": generator.normal(size=50), "color": generator.choice(["red", "blue"], 50), "age": generator.random(50)}
    )
    dataset = paceline.data.from_pandas(frame)
    preprocessor = Chain(StandardScaler(["size"]), OneHotEncoder(["color"])).fit(dataset)
    features = preprocessor.transform_batch(frame)
    model = xgboost_model(features, frame["age"])
    XGBoostCheckpoint.from_model(model, path=tmp_path / "model", preprocessor=preprocessor)
    with served(tmp_path / "model") as server:
        columns = {column["name"]: column["kind"] for column in server.ask("GET", "/model").json["columns"]}
        assert columns == {"size": "any", "color": "any", "age": "number"}
        expected = model.predict(xgboost.DMatrix(features))
        assert predictions(server.predict(rows(frame))) == pytest.approx(expected)
        assert "missing: 'color'" in server.predict(rows(frame.drop(columns="color"))).reason
        assert "unknown: 'color_red'" in server.predict(rows(frame.assign(color_red=1))).reason
        assert server.predict([{"size": "large", "color": "red", "age": 1}]).status == 422


def test_a_row_whose_text_is_missing() -> None:
    """In JSON a null has no type: alone in its column it must not be taken for a number."""
    frame = pd.DataFrame({"colour": ["red", "blue", None, "red"], "size": [1.0, 2.0, None, 4.0]})
    preprocessor = Chain(
        SimpleImputer(["colour"], strategy="most_frequent"), SimpleImputer(["size"]), OneHotEncoder(["colour"])
    ).fit(paceline.data.from_pandas(frame))
    prepared = preprocessor.transform_batch(frame)
    line = LinearRegression().fit(prepared, [1.0, 2.0, 3.0, 4.0])
    booster = xgboost_model(prepared, [1.0, 2.0, 3.0, 4.0])
    for predictor, expected in (
        (SklearnPredictor(line, preprocessor), line.predict(prepared)),
        (XGBoostPredictor(booster, preprocessor), booster.inplace_predict(prepared)),
    ):
        with served(predictor) as server:
            for row, value in zip(rows(frame.astype(object).where(frame.notna(), None)), expected, strict=True):
                assert predictions(server.predict([row])) == [pytest.approx(value)]


def test_columns_of_vectors_are_traced_to_what_they_are_made_of() -> None:
    class Model:
        feature_names_in_ = ("v_0", "v_1", "b")

    class Vectors(Predictor):
        model = Model()

        @classmethod
        def from_checkpoint(cls, checkpoint: Checkpoint) -> Vectors:
            raise NotImplementedError

    dataset = paceline.data.from_items([{"a": 1.0, "c": 2.0, "b": 3.0}])
    preprocessor = Chain(StandardScaler(["a"]), Concatenator(output_column_name="v", include=["a", "c"])).fit(dataset)
    columns = input_columns(Vectors(preprocessor))
    assert (set(columns.kinds), columns.complete) == ({"a", "b", "c"}, True)


def test_values_without_names_are_in_the_order_of_training_whatever_the_preprocessor_changes() -> None:
    frame = pd.DataFrame({"a": [0.0, 4.0], "a_1": [1.0, 5.0], "b": [2.0, 6.0], "c": [3.0, 9.0]})
    scaler = StandardScaler(["c", "a"]).fit(paceline.data.from_pandas(frame))
    model = xgboost_model(scaler.transform_batch(frame), [0, 1])
    with served(XGBoostPredictor(model, scaler)) as server:
        assert [column["name"] for column in server.ask("GET", "/model").json["columns"]] == ["a", "a_1", "b", "c"]
        named = predictions(server.predict(rows(frame)))
        assert predictions(server.predict(frame.to_numpy().tolist())) == named
        assert named[0] != named[1]


def test_values_without_names_are_refused_where_their_order_is_not_known() -> None:
    frame = pd.DataFrame({"a": ["x", "y"], "b": [2.0, 6.0]})
    encoder = OneHotEncoder(["a"]).fit(paceline.data.from_pandas(frame))
    with served(XGBoostPredictor(xgboost_model(encoder.transform_batch(frame), [0, 1]), encoder)) as server:
        assert server.predict(rows(frame)).status == 200
        answer = server.predict([["x", 2.0]])
        assert answer.status == 422
        assert "order" in answer.reason


def test_the_label_that_a_preprocessor_encodes_is_not_asked_for() -> None:
    frame = pd.DataFrame({"a": [1.0, 4.0], "kind": ["x", "y"], "b": [2.0, 6.0]})
    chain = Chain(LabelEncoder("kind"), StandardScaler(["b"])).fit(paceline.data.from_pandas(frame))
    prepared = chain.transform_batch(frame)
    model = xgboost_model(prepared[["a", "b"]], prepared["kind"])
    with served(XGBoostPredictor(model, chain)) as server:
        named = predictions(server.predict(rows(frame[["a", "b"]])))
        assert predictions(server.predict([[1.0, 2.0], [4.0, 6.0]])) == named


def test_a_directory_with_a_model_that_the_library_itself_wrote(cancer: Any, tmp_path: Path) -> None:
    frame, target = cancer
    xgboost_model(frame, target).save_model(tmp_path / "model.json")
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        serve.run(tmp_path, port=0, blocking=False)
    with served(XGBoostCheckpoint.from_directory(str(tmp_path))) as server:
        assert server.predict(rows(frame.head(1))).status == 200


def test_the_predictor_of_a_checkpoint_at_a_uri_is_found_by_its_class(cancer: Any, memory: Any) -> None:
    frame, target = cancer
    uri = XGBoostCheckpoint.from_model(xgboost_model(frame, target)).to_uri("memory://models/of_a_class")
    with served(Checkpoint(uri=uri)) as server:
        assert server.ask("GET", "/model").json["predictor"] == "XGBoostPredictor"
        assert server.predict(rows(frame[:1])).status == 200


def test_a_result_is_not_its_checkpoint() -> None:
    result = Result()
    for given in ((result,), (XGBoostPredictor, result)):
        with pytest.raises(ConfigError, match=r"result\.checkpoint"):
            serve.run(*given, port=0, blocking=False)


def test_a_misspelt_argument_is_told(tmp_path: Path) -> None:
    TorchCheckpoint.from_state_dict({}).to_directory(tmp_path / "weights")
    with pytest.raises(ConfigError, match=r"'modle'.*model, use_gpu"):
        serve.run(TorchPredictor, tmp_path / "weights", modle=torch.nn.Linear(1, 1), port=0, blocking=False)


def test_the_command_on_the_page_is_safe_to_paste() -> None:
    """Names of columns come with a checkpoint, which may be anybody's."""
    predictor = Predictor.from_pandas_udf(lambda frame: frame)
    predictor.set_preprocessor(
        StandardScaler(["it's $(touch x)"]).fit(paceline.data.from_items([{"it's $(touch x)": 1.0}]))
    )
    with served(predictor) as server:
        page = html.unescape(server.ask("GET", "/docs").body.decode())
    command = page.partition("<pre>")[2].partition("</pre>")[0].replace("\\\n", " ")
    assert shlex.split(command)[-2:] == ["-d", '{"rows": [{"it\'s $(touch x)": "..."}]}']


def test_docs_show_the_columns_and_need_nothing_from_elsewhere(cancer: Any, tmp_path: Path) -> None:
    from paceline.train.xgboost import XGBoostCheckpoint

    XGBoostCheckpoint.from_model(xgboost_model(*cancer), path=tmp_path / "model")
    with served(tmp_path / "model", name="tumours <b>&</b>") as server:
        page = server.ask("GET", "/docs")
        text = page.body.decode()
        schema = server.ask("GET", "/openapi.json").json
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "tumours &lt;b&gt;&amp;&lt;/b&gt;" in text
    assert "mean concave points" in text
    assert not any(sign in text for sign in ("<script", "https://", "src="))
    assert set(schema["paths"]) == {"/predict", "/healthz", "/model", "/reload", "/metrics"}
    body = schema["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert list(body["example"]["rows"][0]) == list(cancer[0].columns)
    assert schema["security"] == [{"token": []}]
