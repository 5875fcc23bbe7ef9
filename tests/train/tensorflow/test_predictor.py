"""TensorflowPredictor: tensors in, tensors out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors import Concatenator
from paceline.train.predictor import predictor_for
from paceline.train.tensorflow import TensorflowCheckpoint, TensorflowPredictor
from tests.serve.serving import serving


def linear() -> Any:
    """1 * a + 10 * b + 0.5."""
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.set_weights([np.array([[1.0], [10.0]]), np.array([0.5])])
    return model


def two_inputs_two_outputs() -> Any:
    import keras

    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    return keras.Model({"a": a, "b": b}, {"sum": a + b, "both": keras.layers.Concatenate()([a, b])})


def test_an_array_is_one_tensor() -> None:
    answer = TensorflowPredictor(model=linear()).predict(np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32))
    assert list(answer) == ["predictions"]
    assert answer["predictions"].tolist() == [[21.5], [43.5]]
    assert answer["predictions"].dtype == np.float32


def test_columns_are_joined_by_a_preprocessor() -> None:
    joined = Concatenator(output_column_name="x", include=["a", "b"], dtype=np.float32)
    predictor = TensorflowPredictor(model=linear, preprocessor=joined)
    frame = pd.DataFrame({"a": [1.0, 3.0], "b": [2.0, 4.0]})
    for given in (frame, pa.Table.from_pandas(frame), {name: frame[name].to_numpy() for name in frame}):
        answer = predictor.predict(given)
        assert type(answer) is type(given)
        predictions = answer["predictions"].to_pylist() if isinstance(answer, pa.Table) else answer["predictions"]
        assert np.ravel([np.ravel(value) for value in predictions]).tolist() == [21.5, 43.5]


def test_named_inputs_and_outputs() -> None:
    columns = {"a": np.array([[1.0], [2.0]]), "b": np.array([[3.0], [4.0]])}
    answer = TensorflowPredictor(model=two_inputs_two_outputs()).predict(columns)
    assert {name: values.tolist() for name, values in answer.items()} == {
        "sum": [[4.0], [6.0]],
        "both": [[1.0, 3.0], [2.0, 4.0]],
    }


def test_the_type_of_the_tensors_is_chosen() -> None:
    import tensorflow as tf

    class Types(TensorflowPredictor):
        def call_model(self, inputs: Any) -> Any:
            tensors = inputs if isinstance(inputs, dict) else {"only": inputs}
            return {name: tf.fill(tensor.shape[:1], tensor.dtype.name) for name, tensor in tensors.items()}

    predictor = Types(model=linear())
    given = {"a": np.ones(1, dtype=np.int64), "b": np.ones(1, dtype=np.float64)}
    assert predictor.predict(given)["a"].tolist() == [b"int64"]
    assert predictor.predict(given, dtype=tf.float32)["b"].tolist() == [b"float32"]
    answer = predictor.predict(given, dtype={"a": tf.float16})
    assert (answer["a"].tolist(), answer["b"].tolist()) == ([b"float16"], [b"float64"])
    with pytest.raises(ConfigError, match=r"dtype.*array"):
        predictor.predict(np.ones(2), dtype={"a": tf.float16})


def test_from_a_checkpoint_of_a_model_of_weights_and_of_a_saved_model(tmp_path: Path) -> None:
    rows = np.array([[1.0, 2.0]], dtype=np.float32)
    model = linear()
    whole = TensorflowCheckpoint.from_model(model)
    weights = TensorflowCheckpoint.from_dict({"model_weights": model.get_weights()})
    model.export(tmp_path / "exported", verbose=False)
    exported = TensorflowCheckpoint.from_saved_model(tmp_path / "exported")
    for predictor in (
        TensorflowPredictor.from_checkpoint(whole),
        TensorflowPredictor.from_checkpoint(whole.to_directory(tmp_path / "there")),
        TensorflowPredictor.from_checkpoint(weights, model_definition=linear),
        TensorflowPredictor.from_checkpoint(exported, safe_mode=False),
    ):
        assert predictor.predict(rows)["predictions"].tolist() == [[21.5]]
    with pytest.raises(ConfigError, match=r"weights.*get_model\(build_model\)"):
        TensorflowPredictor.from_checkpoint(weights)


def test_a_checkpoint_is_served() -> None:
    joined = Concatenator(output_column_name="x", include=["a", "b"], dtype=np.float32)
    checkpoint = TensorflowCheckpoint.from_model(linear(), preprocessor=joined)
    with serving(predictor_for(checkpoint).from_checkpoint(checkpoint)) as server:
        answer = server.predict([{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0}])
    assert (answer.status, answer.json) == (200, {"predictions": [[21.5], [43.5]]})


def test_what_does_not_fit_is_told() -> None:
    predictor = TensorflowPredictor(model=linear())
    with pytest.raises(DataError, match=r"(?s)float64.*\(2, 3\).*dtype="):
        predictor.predict(np.ones((2, 3)))
    with pytest.raises(DataError, match=r"(?s)'a': float64.*\(2,\).*Concatenator"):
        predictor.predict({"a": np.ones(2), "b": np.ones(2)})
    with pytest.raises(ConfigError, match=r"Keras model.*NoneType"):
        TensorflowPredictor()
    with pytest.raises(ConfigError, match=r"use_gpu=True.*TensorFlow"):
        TensorflowPredictor(model=linear(), use_gpu=True)

    class Pairs(TensorflowPredictor):
        def call_model(self, inputs: Any) -> Any:
            return [inputs, inputs]

    with pytest.raises(DataError, match=r"list.*tensor.*call_model"):
        Pairs(model=linear()).predict(np.ones((2, 2)))
