"""Nothing that can run code is loaded to serve a checkpoint, unless the user says that it is trusted."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from paceline import serve
from paceline.air import Checkpoint
from paceline.air.checkpoint_trust import code_parts
from paceline.air.errors import CheckpointError
from paceline.data.preprocessors import BatchMapper, Chain, StandardScaler
from paceline.train.sklearn import SklearnCheckpoint, SklearnPredictor
from paceline.train.torch import TorchCheckpoint, TorchPredictor
from tests.faults.test_security import Canary
from tests.serve.serving import Server, Times


def start(*what: Any, **settings: Any) -> Any:
    return serve.run(*what, port=0, blocking=False, **settings)


def stored_with_a_function(path: Path) -> None:
    checkpoint = Checkpoint.from_dict({})
    checkpoint.set_preprocessor(Chain(StandardScaler(["x"]), BatchMapper(lambda frame: frame, batch_format="pandas")))
    checkpoint.to_directory(path)
    (path / "dict_checkpoint.pkl").unlink()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("dict_checkpoint.pkl", ["dict_checkpoint.pkl"]),
        ("model_pickled.pt", ["model_pickled.pt"]),
        ("estimator.joblib", ["estimator.joblib"]),
        ("part/state.pickle", ["part/state.pickle"]),
        ("state.pkl.gz", ["state.pkl.gz"]),
        ("STATE.PKL", ["STATE.PKL"]),
        ("saved_model/saved_model.pb", ["saved_model/saved_model.pb"]),
        ("saved_model.pbtxt", ["saved_model.pbtxt"]),
        ("model_weights.pt", []),
        ("model.ubj", []),
        ("estimator.skops", []),
    ],
)
def test_files_that_can_run_code(tmp_path: Path, name: str, parts: list[str]) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(pickle.dumps(Canary(tmp_path / "song")))
    assert code_parts(Checkpoint(tmp_path)) == parts
    assert code_parts(Checkpoint.from_bytes(Checkpoint(tmp_path).to_bytes())) == parts
    assert not (tmp_path / "song").exists()


def test_functions_inside_of_a_preprocessor(tmp_path: Path) -> None:
    stored_with_a_function(tmp_path / "function")
    assert code_parts(Checkpoint(tmp_path / "function")) == [".preprocessor.json"]
    plain = Checkpoint.from_dict({})
    plain.set_preprocessor(StandardScaler(["x"]))
    plain.to_directory(tmp_path / "plain")
    assert code_parts(Checkpoint(tmp_path / "plain")) == ["dict_checkpoint.pkl"]
    (tmp_path / "plain" / ".preprocessor.json").write_text("[" * 100_000)  # damaged: no reason to fail here
    assert code_parts(Checkpoint(tmp_path / "plain")) == ["dict_checkpoint.pkl"]


def test_objects_that_are_here_already_need_no_trust() -> None:
    assert code_parts(Checkpoint.from_dict({"model": object()})) == []
    assert code_parts(TorchCheckpoint.from_model(torch.nn.Linear(1, 1))) == []
    running = start(TorchPredictor, TorchCheckpoint.from_model(torch.nn.Linear(1, 1)))
    with running:
        assert Server(running).predict([[1]]).status == 200


@pytest.mark.parametrize("name", ["dict_checkpoint.pkl", "model_pickled.pt", "estimator.joblib", "preprocessor.pkl"])
@pytest.mark.parametrize("predictor", [TorchPredictor, SklearnPredictor, Times])
def test_a_prepared_pickle_never_runs(tmp_path: Path, name: str, predictor: Any) -> None:
    place, song = tmp_path / "checkpoint", tmp_path / "song"
    place.mkdir()
    (place / name).write_bytes(pickle.dumps({"model": Canary(song)}))
    with pytest.raises(CheckpointError, match=rf"{name}.*code.*trust=True"):
        start(predictor, place)
    assert not song.exists()


def test_a_prepared_pickle_in_a_preprocessor_never_runs(tmp_path: Path) -> None:
    place, song = tmp_path / "checkpoint", tmp_path / "song"
    (tmp_path / "checkpoint").mkdir()
    (place / "factor.json").write_text("2.0")
    state = {"$pickle": base64.b64encode(pickle.dumps(Canary(song))).decode(), "of": "builtins.function"}
    name = "paceline.data.preprocessors.BatchMapper"
    (place / ".preprocessor.json").write_text(json.dumps({"class": name, "state": {"nested": [{"fn": state}]}}))
    with pytest.raises(CheckpointError, match=r"\.preprocessor\.json.*code"):
        start(Times, place)
    assert not song.exists()


def test_a_prepared_pickle_does_not_come_in_by_reloading(tmp_path: Path) -> None:
    place, song = tmp_path / "checkpoint", tmp_path / "song"
    place.mkdir()
    (place / "factor.json").write_text("2.0")
    running = start(Times, place)
    with running:
        (place / "dict_checkpoint.pkl").write_bytes(pickle.dumps({"model": Canary(song)}))
        answer = Server(running).ask("POST", "/reload")
        assert (answer.status, "dict_checkpoint.pkl" in answer.reason) == (422, True)
        assert Server(running).predict([{"x": 1}]).json == {"predictions": [2.0]}
    assert not song.exists()


def test_what_is_trusted_is_loaded(tmp_path: Path) -> None:
    network = torch.nn.Linear(1, 1)
    TorchCheckpoint.from_model(network).to_directory(tmp_path / "network")
    running = start(TorchPredictor, tmp_path / "network", trust=True)
    with running:
        answer = Server(running).predict([[3.0]])
        assert answer.json["predictions"][0] == pytest.approx(network(torch.tensor([3.0])).tolist())


def test_trust_reaches_the_predictor_that_asks_for_it(tmp_path: Path) -> None:
    model = make_pipeline(FunctionTransformer(unchanged), DummyClassifier()).fit([[1.0], [2.0]], [0, 0])
    place = tmp_path / "estimator"
    SklearnCheckpoint.from_estimator(model).to_directory(place)
    for file in place.glob("estimator.*"):
        file.unlink()
    joblib.dump(model, place / "estimator.joblib")
    with pytest.raises(CheckpointError, match=r"estimator\.joblib.*code"):
        start(place)
    running = start(place, trust=True)
    with running:
        assert Server(running).predict([[1.0]]).json == {"predictions": [0]}


def unchanged(values: Any) -> Any:
    return values
