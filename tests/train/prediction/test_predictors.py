"""Which predictor belongs to which checkpoint."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import xgboost

from paceline.air.checkpoint import Checkpoint
from paceline.air.constants import CHECKPOINT_METADATA_FILE
from paceline.air.errors import ConfigError
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.predictor import Predictor, predictor_for
from paceline.train.torch import TorchCheckpoint, TorchPredictor
from paceline.train.xgboost import XGBoostCheckpoint


def torch_checkpoint() -> TorchCheckpoint:
    return TorchCheckpoint.from_model(torch.nn.Linear(1, 1))


def test_by_the_class_of_the_object() -> None:
    assert predictor_for(torch_checkpoint()) is TorchPredictor
    assert repr(BatchPredictor(torch_checkpoint())).endswith(", TorchPredictor)")


def test_by_a_class_that_it_is_derived_from() -> None:
    class Own(TorchCheckpoint):
        pass

    assert predictor_for(Own.from_model(torch.nn.Linear(1, 1))) is TorchPredictor


def test_by_what_is_stored_where_that_class_is_not_loaded(tmp_path: Path) -> None:
    rows = xgboost.DMatrix([[0.0], [1.0]], [0.0, 1.0])
    path = XGBoostCheckpoint.from_model(xgboost.train({}, rows, 1)).to_directory(tmp_path / "checkpoint")
    code = (
        "import sys\n"
        "from paceline.air.checkpoint import Checkpoint\n"
        "from paceline.train.predictor import predictor_for\n"
        f"checkpoint = Checkpoint.from_directory({path!r})\n"
        "assert type(checkpoint) is Checkpoint and 'paceline.train.xgboost' not in sys.modules\n"
        "predictor = predictor_for(checkpoint)\n"
        "print(predictor.__name__, predictor.from_checkpoint(checkpoint).model.num_boosted_rounds())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "XGBoostPredictor 1\n"


def test_a_file_cannot_have_anything_else_imported(tmp_path: Path) -> None:
    path = Path(torch_checkpoint().to_directory(tmp_path / "checkpoint"))
    (tmp_path / "evil.py").write_text("raise AssertionError('imported')")
    metadata = path / CHECKPOINT_METADATA_FILE
    metadata.write_text(metadata.read_text().replace("paceline.train.torch.checkpoint.TorchCheckpoint", "evil.Evil"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        with pytest.raises(ConfigError, match=r"evil\.Evil"):
            predictor_for(Checkpoint.from_directory(path))
    assert "evil" not in sys.modules


def test_of_other_checkpoints_the_class_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"class.*TorchPredictor"):
        BatchPredictor(Checkpoint.from_dict({"model": 1}))


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("huggingface.transformers", "Transformers"),
        ("lightgbm", "LightGBM"),
        ("lightning", "Lightning"),
        pytest.param("rl", "RL", marks=pytest.mark.rl),
        ("sklearn", "Sklearn"),
        ("tensorflow", "Tensorflow"),
        ("torch", "Torch"),
        ("xgboost", "XGBoost"),
    ],
)
def test_every_checkpoint_of_the_library_has_its_predictor(package: str, name: str) -> None:
    module = importlib.import_module(f"paceline.train.{package}")
    found = predictor_for(getattr(module, f"{name}Checkpoint").from_dict({}))
    assert found is getattr(module, f"{name}Predictor")
    assert issubclass(found, Predictor)
