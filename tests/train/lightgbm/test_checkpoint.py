"""LightGBMCheckpoint: what goes in and what comes out."""

from __future__ import annotations

from pathlib import Path

import lightgbm
import pytest

from paceline.air import Checkpoint
from paceline.air.errors import CheckpointCorruptError, CheckpointError, ConfigError
from paceline.data.preprocessors import StandardScaler
from paceline.train.lightgbm import LightGBMCheckpoint, LightGBMPredictor
from paceline.train.predictor import predictor_for
from tests.air.damage import committed, flip
from tests.train.lightgbm.boosting import QUIET, numbers, trees

FRAME = numbers(200)
FEATURES = FRAME.drop(columns="y")


@pytest.fixture(scope="module")
def booster() -> lightgbm.Booster:
    return lightgbm.train({"objective": "regression", **QUIET}, lightgbm.Dataset(FEATURES, FRAME.y), 6)


def test_a_model_comes_back_from_a_directory_and_from_bytes(booster: lightgbm.Booster, tmp_path: Path) -> None:
    booster.best_iteration = 4
    try:
        stored = LightGBMCheckpoint.from_model(booster, path=tmp_path / "here", preprocessor=StandardScaler(["f0"]))
        assert (tmp_path / "here" / "model.txt").read_text().startswith("tree")
    finally:
        booster.best_iteration = 0
    for checkpoint in (stored, Checkpoint.from_directory(tmp_path / "here"), Checkpoint.from_bytes(stored.to_bytes())):
        assert isinstance(checkpoint, LightGBMCheckpoint)
        model = checkpoint.get_model()
        assert trees(model) == trees(booster)
        assert model.best_iteration == 4
        assert isinstance(checkpoint.get_preprocessor(), StandardScaler)
    assert predictor_for(stored) is LightGBMPredictor


def test_a_model_in_memory_is_the_object_itself(booster: lightgbm.Booster) -> None:
    checkpoint = LightGBMCheckpoint.from_model(booster)
    assert checkpoint.get_model() is booster
    assert checkpoint.to_dict()["model"] is booster


def test_a_bare_model_file_is_enough(booster: lightgbm.Booster, tmp_path: Path) -> None:
    booster.save_model(tmp_path / "model.txt")
    checkpoint = LightGBMCheckpoint.from_directory(tmp_path)
    assert trees(checkpoint.get_model()) == trees(booster)
    assert len(LightGBMPredictor.from_checkpoint(checkpoint).predict(FEATURES)) == 200


def test_a_booster_in_a_dict_is_readable_from_a_directory(booster: lightgbm.Booster, tmp_path: Path) -> None:
    booster.best_iteration = 1
    try:
        Checkpoint.from_dict({"model": booster}).to_directory(tmp_path)
    finally:
        booster.best_iteration = -1
    found = LightGBMCheckpoint.from_directory(tmp_path).get_model()
    assert trees(found) == trees(booster)
    assert found.best_iteration == 1
    assert list(Checkpoint(tmp_path).to_dict()) == ["model"]


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lightgbm\.Booster.*int"):
        LightGBMCheckpoint.from_model(3)
    with pytest.raises(ConfigError, match="booster_"):
        LightGBMCheckpoint.from_model(lightgbm.LGBMRegressor(n_estimators=1).fit(FEATURES, FRAME.y))
    with pytest.raises(CheckpointError, match=r"no file.*model\.txt"):
        LightGBMCheckpoint.from_directory(tmp_path).get_model()
    (tmp_path / "model.txt").write_text("a poem")
    with pytest.raises(CheckpointError, match=r"model\.txt.*damaged"):
        LightGBMCheckpoint.from_directory(tmp_path).get_model()


@pytest.mark.parametrize("file", ["model.txt", "model_details.json"])
def test_a_damaged_model_of_a_run_is_noticed(file: str, booster: lightgbm.Booster, tmp_path: Path) -> None:
    path = committed(LightGBMCheckpoint.from_model(booster), tmp_path / "checkpoint")
    checkpoint = LightGBMCheckpoint.from_directory(path)
    assert trees(checkpoint.get_model()) == trees(booster)
    flip(path / file)
    with pytest.raises(CheckpointCorruptError, match=file):
        checkpoint.get_model()
