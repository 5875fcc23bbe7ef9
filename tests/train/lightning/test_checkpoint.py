"""LightningCheckpoint and LightningPredictor, without a run."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from paceline.air import Checkpoint
from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError, ConfigError
from paceline.data.preprocessors import BatchMapper
from paceline.train.lightning import LightningCheckpoint, LightningPredictor
from paceline.train.predictor import predictor_for
from tests.air.damage import committed, flip
from tests.train.lightning.line import QUIET, Line, points


@pytest.fixture
def module() -> Line:
    return Line(lr=0.5)


@pytest.fixture
def saved(module: Line, tmp_path: Path) -> Path:
    trainer = pl.Trainer(accelerator="cpu", **QUIET)
    trainer.strategy.connect(module)
    path = tmp_path / "epoch=1.ckpt"
    trainer.save_checkpoint(path, weights_only=True)
    return path


def test_a_file_of_lightning_becomes_a_checkpoint_with_a_preprocessor(
    module: Line, saved: Path, tmp_path: Path
) -> None:
    double = BatchMapper(lambda batch: {"x": batch["x"] * 2}, batch_format="numpy")
    checkpoint = LightningCheckpoint.from_path(saved, preprocessor=double)
    directory = Path(checkpoint.to_directory(tmp_path / "stored"))
    saved.unlink()
    assert (directory / "checkpoint.ckpt").is_file()

    stored = Checkpoint.from_directory(directory)
    assert isinstance(stored, LightningCheckpoint)
    loaded = stored.get_model(Line)
    assert loaded.hparams["lr"] == 0.5
    assert torch.equal(loaded.line.weight, module.line.weight)

    assert predictor_for(stored) is LightningPredictor
    x, _ = points()
    expected = module(torch.from_numpy(x * 2)).detach().numpy()
    predictor = LightningPredictor.from_checkpoint(stored, Line)
    np.testing.assert_allclose(predictor.predict({"x": x})["predictions"], expected, rtol=1e-6)


def test_arguments_go_to_the_module_and_another_preprocessor_wins(module: Line, saved: Path) -> None:
    checkpoint = LightningCheckpoint.from_path(saved)
    assert checkpoint.get_model(Line, lr=0.25).hparams["lr"] == 0.25
    assert checkpoint.get_model(Line, weights_only=False).hparams["lr"] == 0.5
    zeros = BatchMapper(lambda batch: {"x": batch["x"] * 0}, batch_format="numpy")
    predictor = LightningPredictor.from_checkpoint(checkpoint, Line, preprocessor=zeros)
    predicted = predictor.predict({"x": points()[0][:2]})["predictions"]
    np.testing.assert_allclose(predicted, [module.line.bias.item()] * 2)


def test_objects_in_a_file_are_loaded_only_when_the_user_says_so(tmp_path: Path) -> None:
    trainer = pl.Trainer(accelerator="cpu", **QUIET)
    trainer.strategy.connect(Line(lr=Path("not a number")))  # type: ignore[arg-type]
    trainer.save_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    checkpoint = LightningCheckpoint.from_path(tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=r"a\.ckpt.*code.*weights_only=False"):
        checkpoint.get_model(Line)
    assert checkpoint.get_model(Line, weights_only=False).hparams["lr"] == Path("not a number")


def test_a_file_that_is_none_of_lightnings_is_told(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    (tmp_path / "torn.ckpt").write_bytes(b"PK\x03\x04" + b"x" * 100)
    for name in ("old.ckpt", "torn.ckpt"):
        with pytest.raises(CheckpointError, match=f"{name}.*Lightning.*damaged"):
            LightningCheckpoint.from_path(tmp_path / name).get_model(Line)


def test_what_is_missing_is_told(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"from_path.*nothing\.ckpt"):
        LightningCheckpoint.from_path(tmp_path / "nothing.ckpt")
    with pytest.raises(ConfigError, match=r"class.*LightningModule.*Line"):
        LightningCheckpoint.from_path(saved).get_model(Line())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"checkpoint\.get_model\(MyModule\)"):
        LightningCheckpoint.from_path(saved).get_model()
    with pytest.raises(ConfigError, match="model_class=MyModule"):
        LightningPredictor.from_checkpoint(LightningCheckpoint.from_path(saved))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights.pt").touch()
    with pytest.raises(CheckpointError, match=r"checkpoint\.ckpt.*weights\.pt"):
        LightningCheckpoint.from_directory(tmp_path / "other").get_model(Line)


def test_a_damaged_file_of_a_run_is_noticed(saved: Path, tmp_path: Path) -> None:
    path = committed(LightningCheckpoint.from_path(saved), tmp_path / "checkpoint")
    checkpoint = LightningCheckpoint.from_directory(path)
    checkpoint.get_model(Line)
    flip(path / "checkpoint.ckpt")
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint\.ckpt"):
        checkpoint.get_model(Line)
