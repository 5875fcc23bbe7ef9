"""Modules under the paths that Ray has for them."""

from __future__ import annotations

import importlib
import inspect
import pickle
from importlib.util import find_spec

import pytest

from paceline.air.old_paths import NEW_PLACES


@pytest.mark.parametrize(
    ("path", "name", "place"),
    [
        ("paceline.tune.suggest", "ConcurrencyLimiter", "paceline.tune.search"),
        ("paceline.tune.suggest.optuna", "OptunaSearch", "paceline.tune.search"),
        ("paceline.tune.stopper.timeout", "TimeoutStopper", "paceline.tune.stopper"),
        ("paceline.tune.trainable.session", "checkpoint_dir", "paceline.tune"),
        ("paceline.tune.execution.placement_groups", "PlacementGroupFactory", "paceline.tune"),
        ("paceline.train.sklearn.sklearn_trainer", "SklearnTrainer", "paceline.train.sklearn"),
        ("paceline.data.preprocessors.scaler", "StandardScaler", "paceline.data.preprocessors"),
        ("paceline.data.read_api", "read_csv", "paceline.data"),
    ],
)
def test_old_paths_have_the_same_objects(path: str, name: str, place: str) -> None:
    module = importlib.import_module(path)
    assert getattr(module, name) is getattr(importlib.import_module(place), name)
    assert name in dir(module)
    assert inspect.getmodule(module) is module
    assert find_spec(path) is not None
    assert pickle.loads(pickle.dumps(getattr(module, name))) is getattr(module, name)


def test_advice_survives_old_paths() -> None:
    with pytest.raises(ImportError, match="OptunaSearch"):
        exec("from paceline.tune.suggest.ax import AxSearch")
    with pytest.raises(ImportError, match="did you mean TimeoutStopper"):
        exec("from paceline.tune.stopper.timeout import TimeoutStoper")
    with pytest.raises(ImportError, match="nowhere"):
        exec("import paceline.tune.suggest.nowhere")


@pytest.mark.parametrize("place", sorted(set(NEW_PLACES.values())))
def test_every_place_exists(place: str) -> None:
    if place == "train.rl":
        pytest.importorskip("ray.rllib", exc_type=ImportError)
    assert find_spec(f"paceline.{place}") is not None
