"""Estimators in checkpoints: what is stored how, and what is read without a question."""

from __future__ import annotations

import io
import json
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from xgboost import XGBClassifier

from paceline import data
from paceline.air import Checkpoint, CheckpointConfig, RunConfig, packing
from paceline.air.errors import CheckpointCorruptError, CheckpointError, ConfigError, SerializationError
from paceline.data import preprocessors
from paceline.train.sklearn import SklearnCheckpoint, SklearnPredictor, SklearnTrainer
from tests.air.damage import committed, flip

FEATURES, LABELS = load_iris(return_X_y=True)
TREE = "sklearn.tree._tree.Tree"


def linear() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(FEATURES, LABELS)


def forest() -> Any:
    return RandomForestClassifier(n_estimators=5, random_state=0).fit(FEATURES, LABELS)


def with_function() -> Any:
    return make_pipeline(FunctionTransformer(lambda values: values * 2), KNeighborsClassifier(3)).fit(FEATURES, LABELS)


def written(estimator: Any, path: Path) -> SklearnCheckpoint:
    """As a stranger would find it."""
    SklearnCheckpoint.from_estimator(estimator, path=path)
    return SklearnCheckpoint.from_directory(path)


def test_in_memory_and_back_through_every_form(tmp_path: Path) -> None:
    estimator = linear()
    checkpoint = SklearnCheckpoint.from_estimator(estimator, preprocessor=preprocessors.StandardScaler(["x"]))
    assert checkpoint.get_estimator() is estimator
    assert "Pipeline" in repr(checkpoint)
    assert SklearnCheckpoint.from_dict(checkpoint.to_dict()).get_estimator() is estimator
    for other in (
        Checkpoint.from_directory(checkpoint.to_directory(tmp_path / "it")),
        Checkpoint.from_bytes(checkpoint.to_bytes()),
        pickle.loads(pickle.dumps(checkpoint)),
        SklearnCheckpoint.from_dict(Checkpoint.from_bytes(checkpoint.to_bytes()).to_dict()),
    ):
        assert isinstance(other, SklearnCheckpoint)
        np.testing.assert_array_equal(other.get_estimator().predict(FEATURES), estimator.predict(FEATURES))
        assert other.get_preprocessor().columns == ["x"]


def test_linear_models_are_read_without_a_question(tmp_path: Path) -> None:
    checkpoint = written(linear(), tmp_path)
    assert (tmp_path / "estimator.skops").exists()
    np.testing.assert_array_equal(checkpoint.get_estimator().predict(FEATURES), linear().predict(FEATURES))


@pytest.mark.parametrize("trust", [True, [TREE], (TREE, "other.Type")])
def test_trees_are_read_once_they_are_trusted(tmp_path: Path, trust: Any) -> None:
    checkpoint = written(forest(), tmp_path)
    with pytest.raises(CheckpointError, match=re.escape(f"trust=['{TREE}']") + ".*trust=True"):
        checkpoint.get_estimator()
    for too_little in (False, [], ["sklearn.tree.Tree"]):
        with pytest.raises(CheckpointError, match=TREE):
            checkpoint.get_estimator(trust=too_little)
    np.testing.assert_array_equal(checkpoint.get_estimator(trust).predict(FEATURES), forest().predict(FEATURES))
    predictor = SklearnPredictor.from_checkpoint(checkpoint, trust=trust)
    np.testing.assert_array_equal(predictor.predict(FEATURES), forest().predict(FEATURES))


def test_types_may_be_given_as_classes(tmp_path: Path) -> None:
    from xgboost import Booster

    model = XGBClassifier(n_estimators=2).fit(FEATURES, LABELS)
    checkpoint = written(model, tmp_path)
    with pytest.raises(CheckpointError, match="xgboost"):
        checkpoint.get_estimator(trust=[XGBClassifier])
    read = checkpoint.get_estimator(trust=[XGBClassifier, Booster])
    np.testing.assert_array_equal(read.predict(FEATURES), model.predict(FEATURES))


def test_what_skops_cannot_hold_is_a_pickle_and_asks_always(tmp_path: Path) -> None:
    checkpoint = written(with_function(), tmp_path)
    assert (tmp_path / "estimator.joblib").exists()
    assert not (tmp_path / "estimator.skops").exists()
    with pytest.raises(CheckpointError, match=r"pickle.*code.*trust=True"):
        checkpoint.get_estimator()
    with pytest.raises(CheckpointError, match="list of types"):
        checkpoint.get_estimator(trust=[TREE])
    np.testing.assert_array_equal(
        checkpoint.get_estimator(trust=True).predict(FEATURES),
        joblib.load(tmp_path / "estimator.joblib").predict(FEATURES),
    )


def test_a_directory_is_used_again(tmp_path: Path) -> None:
    for estimator in (linear(), with_function(), linear()):
        checkpoint = SklearnCheckpoint.from_estimator(estimator, path=tmp_path)
        assert checkpoint.get_estimator().steps[-1][0] == estimator.steps[-1][0]
    SklearnCheckpoint.from_estimator(with_function()).to_directory(tmp_path)
    with pytest.raises(CheckpointError, match=r"estimator\.skops.*estimator\.joblib"):
        SklearnCheckpoint.from_directory(tmp_path).get_estimator(trust=True)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def test_a_tampered_pickle_does_not_run_before_it_is_trusted(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = written(with_function(), tmp_path / "it").path
    assert folder is not None
    Path(folder, "estimator.joblib").write_bytes(cloudpickle.dumps(Bomb(str(canary))))
    for checkpoint in (
        Checkpoint.from_directory(folder),
        Checkpoint.from_bytes(Checkpoint.from_directory(folder).to_bytes()),
    ):
        assert isinstance(checkpoint, SklearnCheckpoint)
        with pytest.raises(CheckpointError, match=r"estimator\.joblib.*pickle"):
            checkpoint.get_estimator()
        with pytest.raises(CheckpointError, match=r"estimator\.joblib.*pickle"):
            SklearnPredictor.from_checkpoint(checkpoint)
    assert not canary.exists()
    SklearnCheckpoint.from_directory(folder).get_estimator(trust=True).close()
    assert canary.exists()  # the canary does sing


def test_a_tampered_skops_file_imports_nothing_before_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "singing_module.py").write_text(
        f"open({str(canary)!r}, 'w').close()\nclass Scaler:\n    def __setstate__(self, state): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    checkpoint = written(linear(), tmp_path / "it")
    file = tmp_path / "it" / "estimator.skops"
    _rewrite(file, "StandardScaler", "Scaler", "sklearn.preprocessing._data", "singing_module")
    with pytest.raises(CheckpointError, match=r"singing_module\.Scaler"):
        checkpoint.get_estimator()
    with pytest.raises(CheckpointError, match=r"singing_module\.Scaler"):
        checkpoint.get_estimator(trust=["sklearn.preprocessing._data.StandardScaler"])
    assert not canary.exists()
    checkpoint.get_estimator(trust=["singing_module.Scaler"])
    assert canary.exists()


def _rewrite(file: Path, *words: str) -> None:
    """Replace words of the schema in a skops file."""
    content = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(content, "w") as new:
        for name in old.namelist():
            part = old.read(name)
            if name == "schema.json":
                text = part.decode()
                for word, other in zip(words[::2], words[1::2], strict=True):
                    text = text.replace(f'"{word}"', f'"{other}"')
                assert json.loads(text) != json.loads(part)
                part = text.encode()
            new.writestr(name, part)
    file.write_bytes(content.getvalue())


@pytest.mark.parametrize("estimator", [forest, with_function])
def test_what_this_program_has_fitted_is_read_without_a_question(tmp_path: Path, estimator: Any) -> None:
    made = SklearnCheckpoint.from_estimator(estimator(), path=tmp_path / "it")
    assert made.path == str(tmp_path / "it")
    assert made.get_estimator() is not estimator
    rows = data.from_items([{"a": float(i), "b": float(-i), "label": i % 2} for i in range(40)])
    for config in (CheckpointConfig(), CheckpointConfig(num_to_keep=0)):
        result = SklearnTrainer(
            estimator=estimator(),
            datasets={"train": rows},
            label_column="label",
            run_config=RunConfig(verbose=0, engine="inline", checkpoint_config=config),
        ).fit()
        assert isinstance(result.checkpoint, SklearnCheckpoint)
        for checkpoint in (result.checkpoint, pickle.loads(pickle.dumps(result.checkpoint))):
            assert len(checkpoint.get_estimator().predict(pd.DataFrame({"a": [0.0, 1.0], "b": 0.0}))) == 2
        changed = result.checkpoint.with_preprocessor(preprocessors.StandardScaler(["a"]))
        assert changed.get_estimator() is not None


SCRIPT = """
import numpy as np, sys
from sklearn.base import BaseEstimator, RegressorMixin
from paceline import data
from paceline.air import RunConfig
from paceline.train.sklearn import SklearnTrainer

class Constant(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        self.value_ = float(y.mean())
        return self
    def predict(self, X):
        return np.full(len(X), self.value_)

if __name__ == "__main__":
    rows = data.from_items([{"x": 1.0, "y": 2.0}, {"x": 2.0, "y": 4.0}])
    result = SklearnTrainer(
        estimator=Constant(), datasets={"train": rows}, label_column="y",
        run_config=RunConfig(verbose=0, storage_path=sys.argv[1]),
    ).fit()
    model = result.checkpoint.get_estimator()
    assert type(model) is Constant
    print(model.value_, result.checkpoint.path)
"""


@pytest.mark.slow
def test_a_class_of_the_users_script_can_be_read_there_and_elsewhere(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "results")],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    value, path = ran.stdout.split()
    assert value == "3.0"
    elsewhere = SklearnCheckpoint.from_directory(path)
    with pytest.raises(CheckpointError, match=r"estimator\.joblib.*pickle"):
        elsewhere.get_estimator()
    assert elsewhere.get_estimator(trust=True).predict(np.zeros((2, 1))).tolist() == [3.0, 3.0]


def test_what_can_be_no_estimator_and_no_trust(tmp_path: Path) -> None:
    for wrong in (LogisticRegression, "model", None):
        with pytest.raises(ConfigError, match=r"fitted.*estimator"):
            SklearnCheckpoint.from_estimator(wrong)
    with pytest.raises(CheckpointError, match=r"estimator\.skops"):
        SklearnCheckpoint.from_checkpoint(Checkpoint.from_dict({"a": 1})).get_estimator()
    for trust in ("sklearn.tree._tree.Tree", 1, RandomForestClassifier):
        with pytest.raises(ConfigError, match="trust is"):
            written(linear(), tmp_path / "it").get_estimator(trust=trust)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    checkpoint = written(linear(), tmp_path)
    (tmp_path / "estimator.skops").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"estimator\.skops.*load"):
        checkpoint.get_estimator()
    (tmp_path / "estimator.skops").rename(tmp_path / "estimator.joblib")
    with pytest.raises(CheckpointError, match=r"estimator\.joblib.*load"):
        checkpoint.get_estimator(trust=True)


def test_what_cannot_be_stored_at_all(tmp_path: Path) -> None:
    estimator = linear()
    estimator.generator_ = (each for each in "abc")
    with pytest.raises(SerializationError, match=r"estimator Pipeline.*stored"):
        SklearnCheckpoint.from_estimator(estimator, path=tmp_path)


def test_the_file_is_one_of_skops(tmp_path: Path) -> None:
    written(linear(), tmp_path)
    assert skops.io.get_untrusted_types(file=tmp_path / "estimator.skops") == []


@pytest.mark.parametrize("make", [linear, with_function])
def test_a_damaged_estimator_of_a_run_is_noticed(make: Any, tmp_path: Path) -> None:
    path = committed(SklearnCheckpoint.from_estimator(make()), tmp_path / "checkpoint")
    checkpoint = SklearnCheckpoint.from_directory(path)
    checkpoint.get_estimator(trust=True)
    (file,) = path.glob("estimator.*")
    flip(file)
    with pytest.raises(CheckpointCorruptError, match=file.name):
        checkpoint.get_estimator(trust=True)


def test_a_file_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_ZIP_SLACK", 1 << 20)
    with zipfile.ZipFile(tmp_path / "estimator.skops", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", b" " * (8 << 20))
    with pytest.raises(CheckpointError, match=r"estimator\.skops.*8,388,608"):
        SklearnCheckpoint.from_directory(tmp_path).get_estimator()
