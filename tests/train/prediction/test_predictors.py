"""Which predictor belongs to which checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.air.checkpoint import Checkpoint
from paceline.air.constants import CHECKPOINT_METADATA_FILE
from paceline.air.errors import ConfigError
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.predictors import _PREDICTORS, predictor_for
from paceline.train.torch import TorchCheckpoint, TorchPredictor


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
    path = torch_checkpoint().to_directory(tmp_path / "checkpoint")
    code = (
        "import sys\n"
        "from paceline.air.checkpoint import Checkpoint\n"
        "from paceline.train.predictors import predictor_for\n"
        f"checkpoint = Checkpoint.from_directory({path!r})\n"
        "assert type(checkpoint) is Checkpoint and 'paceline.train.torch' not in sys.modules\n"
        "predictor = predictor_for(checkpoint)\n"
        "print(predictor.__name__, predictor.from_checkpoint(checkpoint).model)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("TorchPredictor Linear(in_features=1")


def test_a_file_cannot_have_anything_else_imported(tmp_path: Path) -> None:
    path = Path(torch_checkpoint().to_directory(tmp_path / "checkpoint"))
    (tmp_path / "evil.py").write_text("raise AssertionError('imported')")
    metadata = path / CHECKPOINT_METADATA_FILE
    metadata.write_text(metadata.read_text().replace("paceline.train.torch.checkpoint.TorchCheckpoint", "evil.Evil"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        with pytest.raises(ConfigError, match=r"which was saved as a evil\.Evil, is not known"):
            predictor_for(Checkpoint.from_directory(path))
    assert "evil" not in sys.modules


def test_of_other_checkpoints_the_class_must_be_named() -> None:
    with pytest.raises(ConfigError, match="Pass the class of the predictor, for example TorchPredictor"):
        BatchPredictor(Checkpoint.from_dict({"model": 1}))


@pytest.mark.parametrize(("checkpoint", "predictor"), _PREDICTORS.items())
def test_every_line_of_the_table_is_true(checkpoint: str, predictor: str) -> None:
    import importlib

    from paceline.train.predictor import Predictor

    module, _, name = checkpoint.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    assert issubclass(kind, Checkpoint)
    found = predictor_for(kind.from_dict({}))
    assert issubclass(found, Predictor)
    assert f"{found.__module__}.{found.__qualname__}" == predictor
