"""XGBoostCheckpoint: what goes in and what comes out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xgboost

from paceline.air import Checkpoint
from paceline.air.errors import CheckpointCorruptError, CheckpointError, ConfigError
from paceline.data.preprocessors import StandardScaler
from paceline.train.xgboost import XGBoostCheckpoint
from paceline.train.xgboost.checkpoint import read_booster
from tests.air.damage import committed, flip
from tests.train.xgboost.boosting import trees


@pytest.fixture(scope="module")
def booster() -> xgboost.Booster:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(200, 3))
    matrix = xgboost.QuantileDMatrix(features, features[:, 0], feature_names=["a", "b", "c"])
    model = xgboost.train(
        {"nthread": 1}, matrix, 9, evals=[(matrix, "train")], early_stopping_rounds=3, verbose_eval=False
    )
    assert model.best_iteration == 8
    return model


def test_a_booster_comes_back_with_its_names_and_best_round(booster: xgboost.Booster, tmp_path: Path) -> None:
    made = XGBoostCheckpoint.from_model(booster)
    stored = XGBoostCheckpoint.from_directory(made.to_directory(tmp_path / "model"))
    for checkpoint in (made, stored, XGBoostCheckpoint.from_bytes(made.to_bytes())):
        model = checkpoint.get_model()
        assert trees(model) == trees(booster)
        assert model.feature_names == ["a", "b", "c"]
        assert model.best_iteration == 8
        assert trees(checkpoint.to_dict()["model"]) == trees(booster)


def test_a_checkpoint_does_not_change_when_training_goes_on(booster: xgboost.Booster) -> None:
    model = booster.copy()
    checkpoint = XGBoostCheckpoint.from_model(model)
    model.set_attr(best_iteration="3")
    assert checkpoint.get_model().best_iteration == 8


def test_a_path_is_a_directory_to_write_to(booster: xgboost.Booster, tmp_path: Path) -> None:
    scaler = StandardScaler(["a"])
    checkpoint = XGBoostCheckpoint.from_model(booster, path=tmp_path / "here", preprocessor=scaler)
    assert (tmp_path / "here" / "model.ubj").is_file()
    again = Checkpoint.from_directory(tmp_path / "here")
    assert isinstance(again, XGBoostCheckpoint)
    assert isinstance(again.get_preprocessor(), StandardScaler)
    assert trees(checkpoint.get_model()) == trees(again.get_model())


@pytest.mark.parametrize("name", ["model.json", "model"])
def test_models_of_other_programs_are_read(name: str, booster: xgboost.Booster, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(bytes(booster.save_raw("json" if name == "model.json" else "ubj")))
    assert trees(XGBoostCheckpoint.from_directory(tmp_path).get_model()) == trees(booster)


def test_an_estimator_of_the_scikit_learn_interface_is_taken() -> None:
    estimator = xgboost.XGBRegressor(n_estimators=2, n_jobs=1).fit([[0.0], [1.0]], [0.0, 1.0])
    assert XGBoostCheckpoint.from_model(estimator).get_model().num_boosted_rounds() == 2


def test_what_holds_no_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"xgboost\.Booster.*dict"):
        XGBoostCheckpoint.from_model({})  # type: ignore[arg-type]
    (tmp_path / "other.txt").write_text("nothing")
    with pytest.raises(CheckpointError, match=f"{tmp_path}.*XGBoost model"):
        XGBoostCheckpoint.from_directory(tmp_path).get_model()
    for content in (b"", b"no model", json.dumps({"learner": {}}).encode()):
        (tmp_path / "model.ubj").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"model\.ubj.*damaged"):
            XGBoostCheckpoint.from_directory(tmp_path).get_model()


class Canary:
    """As a pickle: touches a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mknod, (str(self.path),)


def test_a_stored_dict_is_not_unpickled_for_a_model(booster: xgboost.Booster, tmp_path: Path) -> None:
    stored = tmp_path / "stored"
    Checkpoint.from_dict({"model": Canary(tmp_path / "touched")}).to_directory(stored)
    with pytest.raises(CheckpointError, match=r"XGBoost model.*to_dict\(\)\['model'\].*unpickle"):
        XGBoostCheckpoint.from_directory(stored).get_model()
    assert not (tmp_path / "touched").exists()
    in_memory = XGBoostCheckpoint.from_checkpoint(Checkpoint.from_dict({"model": booster}))
    assert in_memory.get_model() is booster


def test_a_booster_in_a_dict_is_readable_from_a_directory(booster: xgboost.Booster, tmp_path: Path) -> None:
    class NeverLoaded(Canary):
        """Beside the model in the same pickle."""

    data = {"model": booster, "other": NeverLoaded(tmp_path / "touched")}
    Checkpoint.from_dict(data).to_directory(tmp_path / "stored")
    stored = XGBoostCheckpoint.from_directory(tmp_path / "stored")
    assert trees(stored.get_model()) == trees(booster)
    assert stored.get_model().feature_names == booster.feature_names
    assert not (tmp_path / "touched").exists()
    Checkpoint.from_dict({"model": booster}).to_directory(tmp_path / "plain")
    assert list(Checkpoint(tmp_path / "plain").to_dict()) == ["model"]


def test_a_damaged_model_of_a_run_is_noticed(booster: xgboost.Booster, tmp_path: Path) -> None:
    path = committed(XGBoostCheckpoint.from_model(booster), tmp_path / "checkpoint")
    checkpoint = XGBoostCheckpoint.from_directory(path)
    assert trees(checkpoint.get_model()) == trees(booster)
    flip(path / "model.ubj")
    for read in (checkpoint.get_model, checkpoint.to_dict, lambda: read_booster(checkpoint, "model.ubj")):
        with pytest.raises(CheckpointCorruptError, match=r"model\.ubj"):
            read()
