"""Files of TensorFlow and Keras that bring code run only if they are trusted; files that unpack to too much never."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import serve
from paceline.air.errors import CheckpointError, ConfigError
from paceline.air.packing import MAX_ZIP_GROWTH, MAX_ZIP_SLACK
from paceline.train.tensorflow import TensorflowCheckpoint, TensorflowPredictor, keras_files
from paceline.train.tensorflow.keras_files import MAX_JSON_BYTES
from tests.serve.serving import Server
from tests.train.tensorflow.keras_models import BOTH, ROWS, assert_same, build, with_lambda


@BOTH
def test_code_in_a_file_is_loaded_only_if_asked_for(name: str, tmp_path: Path) -> None:
    model = with_lambda(name)
    model.save(tmp_path / "mine.h5")
    for checkpoint in (TensorflowCheckpoint.from_model(model), TensorflowCheckpoint.from_h5(tmp_path / "mine.h5")):
        with pytest.raises(CheckpointError, match=r"get_model\(safe_mode=False\)"):
            checkpoint.get_model()
        assert checkpoint.get_model(safe_mode=False)(ROWS).numpy().tolist() == (ROWS * 2).tolist()
        predictor = TensorflowPredictor.from_checkpoint(checkpoint, safe_mode=False)
        assert predictor.predict(ROWS)["predictions"].tolist() == (ROWS * 2).tolist()


def function(name: str, module: str) -> dict[str, Any]:
    return {"class_name": "function", "config": name, "module": module, "registered_name": "function"}


def layer(class_name: str, config: dict[str, Any], module: str = "keras.layers", **more: Any) -> dict[str, Any]:
    config = {"name": "evil", "trainable": True, "dtype": "float32", **config}
    return {
        "class_name": class_name,
        "config": config,
        "module": module,
        "registered_name": None,
        "name": "evil",
    } | more


def with_layer(path: Path, added: dict[str, Any], argument: str, **keywords: str) -> Path:
    """A file of tf_keras in which a layer stands that is called with a string when it is loaded."""
    import tf_keras

    inputs = tf_keras.Input((4,))
    tf_keras.Model(inputs, tf_keras.layers.Dense(1)(inputs)).save(path.with_name("good.keras"))
    calls = {"build_config": None, "inbound_nodes": [[["_CONSTANT_VALUE", -1, argument, keywords]]]}
    with zipfile.ZipFile(path.with_name("good.keras")) as good, zipfile.ZipFile(path, "w") as bad:
        config = json.loads(good.read("config.json"))
        config["config"]["layers"].insert(1, {**added, **calls})
        for name in good.namelist():
            bad.writestr(name, json.dumps(config) if name == "config.json" else good.read(name))
    return path


LAMBDA = {
    "function_type": "function",
    "module": "builtins",
    "arguments": {},
    "output_shape": None,
    "output_shape_type": "raw",
    "output_shape_module": None,
}


@pytest.mark.parametrize(
    ("added", "what"),
    [
        (layer("Lambda", {**LAMBDA, "function": function("system", "os")}), "code"),
        (layer("Activation", {"activation": function("system", "os")}), "'system' of 'os'"),
        (layer("Activation", {"activation": function("eval", "builtins")}), "'eval'"),
        (layer("Activation", {"activation": function("get_file", "keras.utils")}), "'get_file'"),
        (layer("get_file", {}, "keras.utils"), "'get_file' of 'keras.utils'"),
        (layer("Odd", {}, "keras.utils", registered_name="get_file"), "'Odd' of 'keras.utils'"),
        (layer("Popen", {}, "subprocess"), "'Popen'"),
        (layer("TFOpLambda", {"function": "io.write_file"}), "io.write_file"),
        (layer("TFOpLambda", {"function": "compat.v1.write_file"}), "compat.v1.write_file"),
        (layer("TFOpLambda", {"function": "keras.utils.get_file"}), "keras.utils.get_file"),
        (layer("StringLookup", {"vocabulary": "/etc/hostname"}), "'/etc/hostname'"),
        (layer("ClassMethod", {"cls_symbol": "io.gfile.GFile", "method_name": "write"}), "io.gfile.GFile"),
    ],
)
def test_what_a_file_of_tf_keras_names_is_neither_imported_nor_called(
    added: dict[str, Any], what: str, tmp_path: Path
) -> None:
    more = {"contents": "x"} if "write_file" in str(added) else {}
    path = with_layer(tmp_path / "model.keras", added, f"touch {tmp_path}/ran", **more)
    with pytest.raises(CheckpointError, match=rf"holds .*{re.escape(what)}.*get_model\(safe_mode=False\)"):
        TensorflowPredictor.from_checkpoint(TensorflowCheckpoint.from_keras(path))
    assert not (tmp_path / "ran").exists()


def test_the_layer_of_that_test_does_run_code_when_asked_for(tmp_path: Path) -> None:
    """So that the refusal is what keeps it from running."""
    added = layer("Lambda", {**LAMBDA, "function": function("system", "os")})
    path = with_layer(tmp_path / "model.keras", added, f"touch {tmp_path}/ran")
    with pytest.raises(CheckpointError):
        TensorflowCheckpoint.from_keras(path).get_model(safe_mode=False)
    assert (tmp_path / "ran").exists()


def halved(values: Any) -> Any:
    return values / 2


def test_models_of_many_kinds_are_not_taken_for_code() -> None:
    import tensorflow as tf
    import tf_keras
    from tf_keras import layers

    @tf_keras.saving.register_keras_serializable("mine")
    class Registered(layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return inputs + 1.0

    class Given(layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return inputs * 3.0

    inputs = tf_keras.Input((4,))
    values = layers.Dense(4, "gelu", kernel_initializer="he_normal", kernel_regularizer="l2")(inputs)
    values = layers.BatchNormalization()(tf.reshape(values * 2.0, (-1, 2, 2)))
    values = layers.Bidirectional(layers.LSTM(3, return_sequences=True, kernel_constraint="max_norm"))(values)
    values = layers.MultiHeadAttention(2, 2)(values, values)[:, 0]
    values = Given()(Registered()(layers.Activation(halved)(tf.nn.softmax(tf.concat([values, inputs], -1)))))
    model = tf_keras.Model(inputs, layers.Dense(1, activation=tf_keras.activations.swish)(layers.Dropout(0.5)(values)))
    schedule = tf_keras.optimizers.schedules.CosineDecay(0.1, 10)
    model.compile(tf_keras.optimizers.AdamW(schedule), tf_keras.losses.Huber(), metrics=["mae", tf_keras.metrics.AUC()])
    checkpoint = TensorflowCheckpoint.from_model(model)
    with pytest.raises(CheckpointError, match=r"get_model\(custom_objects="):
        checkpoint.get_model()
    assert_same(checkpoint.get_model(custom_objects={"Given": Given, "halved": halved}), model)


def test_types_of_tensorflow_are_not_taken_for_code() -> None:
    import tensorflow as tf
    import tf_keras

    inputs = tf_keras.Input(type_spec=tf.RaggedTensorSpec([None, None], tf.float32))
    model = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(tf.reduce_sum(inputs, axis=1, keepdims=True)))
    loaded = TensorflowCheckpoint.from_model(model).get_model()
    rows = tf.ragged.constant([[1.0, 2.0], [3.0]])
    np.testing.assert_allclose(loaded(rows), model(rows))


@pytest.fixture(params=["a graph", "a model of tf_keras"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> TensorflowCheckpoint:
    """A SavedModel whose graph writes the file "ran" when it predicts."""
    import tensorflow as tf
    import tf_keras

    place = str(tmp_path / "ran")

    def written(values: Any) -> Any:
        import tensorflow as tf

        with tf.control_dependencies([tf.io.write_file(place, "x")]):
            return tf.identity(values)

    if request.param == "a graph":
        module = tf.Module()
        module.serve = tf.function(written, input_signature=[tf.TensorSpec([None, 4], tf.float32)])
        tf.saved_model.save(module, tmp_path / "saved")
    else:
        model = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Lambda(written)])
        model.save(tmp_path / "saved")
    (tmp_path / "ran").unlink(missing_ok=True)
    return TensorflowCheckpoint.from_saved_model(tmp_path / "saved")


def test_the_graph_of_a_saved_model_runs_only_if_asked_for(writer: TensorflowCheckpoint, tmp_path: Path) -> None:
    stored = TensorflowCheckpoint.from_directory(writer.to_directory(tmp_path / "there"))
    for checkpoint in (writer, stored):
        for load in (
            lambda checkpoint: checkpoint.get_model(),
            lambda checkpoint: checkpoint.get_model(custom_objects={}, compile=False),
            TensorflowPredictor.from_checkpoint,
        ):
            with pytest.raises(CheckpointError, match=r"SavedModel.*get_model\(safe_mode=False\)"):
                load(checkpoint)
        assert "model" not in checkpoint.to_dict()
    assert not (tmp_path / "ran").exists()
    TensorflowPredictor.from_checkpoint(stored, safe_mode=False).predict(ROWS)  # the graph that was refused does write
    assert (tmp_path / "ran").exists()


def test_a_saved_model_is_served_only_if_trusted(writer: TensorflowCheckpoint, tmp_path: Path) -> None:
    place = writer.to_directory(tmp_path / "there")
    for given in (place, writer):
        for trust in (False, ["tensorflow.Graph"]):
            with pytest.raises(CheckpointError, match=r"saved_model\.pb.*code.*trust=True"):
                serve.run(TensorflowPredictor, given, port=0, blocking=False, trust=trust)
    assert not (tmp_path / "ran").exists()
    running = serve.run(place, port=0, blocking=False, trust=True, predict_kwargs={"dtype": np.float32})
    assert running is not None
    with running:
        assert Server(running).predict([[1.5, 2.5, 3.5, 4.5]]).status == 200
    assert (tmp_path / "ran").exists()


def test_an_older_keras_is_not_asked_to_be_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    checkpoint = TensorflowCheckpoint.from_model(build("keras"))
    for version in ("3.9.0", "3.13.2", "3.15.0"):
        monkeypatch.setattr(keras, "__version__", version)
        with pytest.raises(CheckpointError, match=rf"Keras {version}.*pip install 'keras>=3\.15\.1'"):
            checkpoint.get_model(compile=False)
        checkpoint.get_model(compile=False, safe_mode=False)
    for version in ("3.15.1", "3.16.0.dev2026", "4.0"):
        monkeypatch.setattr(keras, "__version__", version)
        checkpoint.get_model(compile=False)


class Witness:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_dict_is_unpickled_for_a_model_that_is_given_only(tmp_path: Path) -> None:
    checkpoint = TensorflowCheckpoint.from_dict({"mine": Witness(tmp_path / "unpickled")})
    stored = TensorflowCheckpoint.from_directory(checkpoint.to_directory(tmp_path / "there"))
    with pytest.raises(CheckpointError, match="no model"):
        stored.get_model()
    with pytest.raises(CheckpointError, match="no model"):
        TensorflowPredictor.from_checkpoint(stored)
    assert not (tmp_path / "unpickled").exists()


def test_a_program_of_tensorflow_takes_no_model_definition(tmp_path: Path) -> None:
    build("keras").export(tmp_path / "exported", verbose=False)
    exported = TensorflowCheckpoint.from_saved_model(tmp_path / "exported")
    with pytest.raises(ConfigError, match=r"program of TensorFlow.*model definition"):
        exported.get_model(build("keras"))
    build("tf_keras").save(tmp_path / "whole")
    with pytest.raises(CheckpointError, match=r"(?s)Keras.*SavedModel"):
        TensorflowCheckpoint.from_saved_model(tmp_path / "whole").get_model(
            lambda: with_lambda("tf_keras"), safe_mode=False
        )


@pytest.mark.parametrize("file", ["metadata.json", "config.json", "model.weights.h5"])
def test_a_file_that_unpacks_to_far_more_than_it_is_is_refused(file: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.keras"
    size = MAX_JSON_BYTES + 1 if file.endswith(".json") else MAX_ZIP_SLACK + (1 << 20) * MAX_ZIP_GROWTH
    contents = {"metadata.json": b'{"keras_version": "3.0"}', "config.json": b"{}", "model.weights.h5": b""}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            with archive.open(name, "w", force_zip64=True) as member:
                for start in range(0, size if name == file else 0, 1 << 20):
                    member.write(b" " * min(1 << 20, size - start))
                member.write(content)
    assert path.stat().st_size < 1 << 20
    checkpoint = TensorflowCheckpoint.from_keras(path)
    with pytest.raises(CheckpointError, match=r"model\.keras.* bytes"):
        checkpoint.get_model()
    with pytest.raises(CheckpointError, match=r"model\.keras.* bytes"):
        checkpoint.get_model(lambda: build("keras"))


def test_a_long_description_in_an_hdf5_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build("tf_keras").save(tmp_path / "model.h5")
    monkeypatch.setattr(keras_files, "MAX_JSON_BYTES", 100)
    with pytest.raises(CheckpointError, match=r"model\.h5.*model_config.*bytes"):
        TensorflowCheckpoint.from_h5(tmp_path / "model.h5").get_model()
