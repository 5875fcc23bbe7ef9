"""TensorflowCheckpoint: models of both Keras libraries in every format, loaded by the one that wrote them."""

from __future__ import annotations

import importlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError, ConfigError
from paceline.data.preprocessors import StandardScaler
from paceline.train.predictor import predictor_for
from paceline.train.tensorflow import TensorflowCheckpoint, TensorflowPredictor, keras_files
from tests.air.damage import committed, flip
from tests.train.tensorflow.keras_models import BOTH, ROWS, assert_same, build


@BOTH
def test_a_model_comes_back_from_every_form_with_its_optimizer(name: str, tmp_path: Path) -> None:
    model = build(name)
    model.fit(ROWS, np.ones(2), verbose=0)
    checkpoint = TensorflowCheckpoint.from_model(model, preprocessor=StandardScaler(["a"]))
    model_then, kernel = checkpoint.get_model(), model.get_weights()[0]
    assert_same(model_then, model)
    model.fit(ROWS, np.ones(2), verbose=0)  # what was saved does not change with it
    assert np.array_equal(checkpoint.get_model().get_weights()[0], kernel)
    directory = Checkpoint.from_directory(checkpoint.to_directory(tmp_path / "there"))
    assert isinstance(directory, TensorflowCheckpoint)
    for other in (directory, TensorflowCheckpoint.from_bytes(checkpoint.to_bytes())):
        assert_same(other.get_model(), model_then)
        assert int(other.get_model().optimizer.iterations.numpy()) == 1
        assert getattr(other.get_model(compile=False), "optimizer", None) is None
        assert_same(other.to_dict()["model"], model_then)
        assert isinstance(other.get_preprocessor(), StandardScaler)
    assert predictor_for(directory) is TensorflowPredictor


@BOTH
def test_a_model_is_saved_in_any_thread(name: str) -> None:
    model = build(name)
    model.fit(ROWS, np.ones(2), verbose=0)
    with ThreadPoolExecutor() as pool:
        checkpoint = pool.submit(TensorflowCheckpoint.from_model, model).result()
        assert_same(pool.submit(checkpoint.get_model).result(), model)


@BOTH
def test_the_weights_are_loaded_into_a_model_that_is_given(name: str) -> None:
    saved = build(name)
    checkpoint = TensorflowCheckpoint.from_model(saved)
    given = build(name)
    assert checkpoint.get_model(given) is given
    assert_same(given, saved)
    assert_same(checkpoint.get_model(lambda: build(name)), saved)
    with pytest.raises(ConfigError, match=r"Keras model.*function.*int"):
        checkpoint.get_model(lambda: 3)


@BOTH
def test_files_of_keras(name: str, tmp_path: Path) -> None:
    model = build(name)
    for ending, make in (("keras", TensorflowCheckpoint.from_keras), ("h5", TensorflowCheckpoint.from_h5)):
        path = tmp_path / f"mine.{ending}"
        model.save(path)
        checkpoint = make(path)
        path.unlink()
        assert_same(checkpoint.get_model(compile=False), model)
        assert_same(checkpoint.get_model(build(name)), model)
    model.save_weights(tmp_path / "mine.weights.h5")
    weights = TensorflowCheckpoint.from_h5(tmp_path / "mine.weights.h5")
    assert_same(weights.get_model(lambda: build(name)), model)
    with pytest.raises(ConfigError, match=r"weights.*get_model\(build_model\)"):
        weights.get_model()


def test_saved_models(tmp_path: Path) -> None:
    model = build("tf_keras")
    model.save(tmp_path / "whole")
    checkpoint = TensorflowCheckpoint.from_saved_model(tmp_path / "whole")
    assert_same(checkpoint.get_model(safe_mode=False), model)
    assert_same(checkpoint.get_model(build("tf_keras"), safe_mode=False), model)
    assert "model" not in checkpoint.to_dict()
    directory = Path(checkpoint.to_directory(tmp_path / "checkpoint"))
    assert_same(keras_files.keras_of(model).models.load_model(directory), model)
    model = build("keras")
    model.export(tmp_path / "exported", verbose=False)
    exported = TensorflowCheckpoint.from_saved_model(tmp_path / "exported").get_model(safe_mode=False)
    np.testing.assert_allclose(exported.serve(ROWS), model(ROWS))


def test_weights_in_a_dict(tmp_path: Path) -> None:
    model = build("keras")
    checkpoint = TensorflowCheckpoint.from_dict({"epoch": 3, "model_weights": model.get_weights()})
    assert_same(checkpoint.get_model(lambda: build("keras")), model)
    stored = TensorflowCheckpoint.from_directory(checkpoint.to_directory(tmp_path / "there"))
    assert_same(stored.get_model(build("keras")), model)
    assert stored.to_dict()["epoch"] == 3
    with pytest.raises(ConfigError, match=r"weights.*get_model\(build_model\)"):
        checkpoint.get_model()
    with pytest.raises(CheckpointError, match=r"no model.*get_model\(build_model\)"):
        stored.get_model()
    with pytest.raises(CheckpointError, match=r"weights.*\bfit\b"):
        TensorflowCheckpoint.from_dict({"model": [np.ones(3)]}).get_model(build("keras"))


@BOTH
def test_a_model_with_fewer_layers_than_were_saved_is_refused(name: str, tmp_path: Path) -> None:
    keras = importlib.import_module(name)

    def deep(layers: int) -> Any:
        return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(layers))])

    saved = deep(3)
    saved.save_weights(tmp_path / "mine.weights.h5")
    for checkpoint in (
        TensorflowCheckpoint.from_model(saved),
        TensorflowCheckpoint.from_h5(tmp_path / "mine.weights.h5"),
    ):
        with pytest.raises(CheckpointError, match=r"3 layers.*\b2\b"):
            checkpoint.get_model(lambda: deep(2))
        assert_same(checkpoint.get_model(lambda: deep(3)), saved)


def test_a_saved_model_where_earlier_versions_put_it_is_found(tmp_path: Path) -> None:
    model = build("tf_keras")
    model.save(tmp_path / "checkpoint" / "saved_model")
    checkpoint = TensorflowCheckpoint.from_directory(tmp_path / "checkpoint")
    assert_same(checkpoint.get_model(safe_mode=False), model)


def test_a_keras_file_beside_a_saved_model_is_not_its_model(tmp_path: Path) -> None:
    model = build("tf_keras")
    model.save(tmp_path / "whole")
    (tmp_path / "whole" / "older.h5").write_bytes(b"not a model")
    checkpoint = TensorflowCheckpoint.from_saved_model(tmp_path / "whole")
    assert_same(checkpoint.get_model(safe_mode=False), model)


@BOTH
def test_a_model_that_keras_cannot_describe_is_refused(name: str) -> None:
    keras = importlib.import_module(name)

    class Odd(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def get_config(self) -> Any:
            return {**super().get_config(), "odd": object()}

    with pytest.raises(CheckpointError, match=r"from_dict\(\{'model_weights'"):
        TensorflowCheckpoint.from_model(keras.Sequential([keras.Input((4,)), Odd()]))


@pytest.mark.parametrize("metadata", ['{"keras_version": "dev"}', "[]", "{}", "nonsense"])
def test_a_file_of_no_known_keras_is_refused(metadata: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "odd.keras", "w") as archive:
        archive.writestr("metadata.json", metadata)
    with pytest.raises(CheckpointError, match="is damaged"):
        TensorflowCheckpoint.from_keras(tmp_path / "odd.keras").get_model()


def test_a_directory_that_the_user_wrote_a_model_to(tmp_path: Path) -> None:
    model = build("keras")
    model.save(tmp_path / "my_model.keras")
    assert_same(TensorflowCheckpoint.from_directory(tmp_path).get_model(compile=False), model)
    model.save(tmp_path / "another.keras")
    with pytest.raises(CheckpointError, match=r"another\.keras, my_model\.keras"):
        TensorflowCheckpoint.from_directory(tmp_path).get_model()


def test_classes_of_the_users_own() -> None:
    import keras

    class Twice(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * 2

    model = keras.Sequential([keras.Input((4,)), Twice()])
    checkpoint = TensorflowCheckpoint.from_model(model)
    with pytest.raises(CheckpointError, match=r"get_model\(custom_objects="):
        checkpoint.get_model()
    assert_same(checkpoint.get_model(custom_objects={"Twice": Twice}), model)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"from_model\(\).*Keras model.*list"):
        TensorflowCheckpoint.from_model([])
    with pytest.raises(CheckpointNotFoundError, match=r"none\.h5"):
        TensorflowCheckpoint.from_h5(tmp_path / "none.h5")
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"text\.txt.*\.h5"):
        TensorflowCheckpoint.from_h5(tmp_path / "text.txt")
    with pytest.raises(CheckpointNotFoundError, match=r"from_saved_model.*SavedModel"):
        TensorflowCheckpoint.from_saved_model(tmp_path)
    with pytest.raises(CheckpointError, match="no model"):
        TensorflowCheckpoint.from_directory(tmp_path).get_model()
    for name in ("broken.h5", "broken.keras"):
        (tmp_path / name).write_bytes(b"broken")
        make = TensorflowCheckpoint.from_h5 if name.endswith("h5") else TensorflowCheckpoint.from_keras
        with pytest.raises(CheckpointError, match="is damaged"):
            make(tmp_path / name).get_model()


def test_a_damaged_model_of_a_run_is_noticed(tmp_path: Path) -> None:
    path = committed(TensorflowCheckpoint.from_model(build("keras")), tmp_path / "checkpoint")
    checkpoint = TensorflowCheckpoint.from_directory(path)
    checkpoint.get_model(compile=False)
    flip(path / "model.keras")
    for read in (checkpoint.get_model, checkpoint.to_dict):
        with pytest.raises(CheckpointCorruptError, match=r"model\.keras"):
            read()
