"""Callbacks of frameworks that report from inside of a function trainable."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import lightgbm
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch._dynamo  # (sets variables when it is imported, which no test shall be blamed for)
import xgboost

from paceline.air.errors import ConfigError
from paceline.tune.integration import pytorch_lightning as reporting
from tests.tune.trainable.one_trial import run_trial

ROWS = np.linspace(-1, 1, 60).reshape(-1, 2)
LABELS = (ROWS.sum(axis=1) > 0).astype(float)


def boost_xgboost(config: dict[str, Any]) -> None:
    data = xgboost.DMatrix(ROWS, LABELS)
    params = {"objective": "binary:logistic", "max_depth": 2, "nthread": 1}
    if config.get("cv"):
        xgboost.cv(params, data, num_boost_round=3, nfold=2, callbacks=[config["callback"]])
    else:
        xgboost.train(params, data, 4, evals=[(data, "eval")], callbacks=[config["callback"]], verbose_eval=False)


def boost_lightgbm(config: dict[str, Any]) -> None:
    data = lightgbm.Dataset(ROWS, LABELS)
    params = {"objective": "binary", "metric": "binary_logloss", "verbose": -1, "num_threads": 1, "min_data_in_leaf": 2}
    if config.get("cv"):
        lightgbm.cv(params, data, num_boost_round=3, nfold=2, callbacks=[config["callback"]])
    else:
        valid = {"valid_sets": [data], "valid_names": ["eval"]}
        lightgbm.train(params, data, 4, callbacks=[config["callback"]], **valid)


@pytest.mark.parametrize(
    ("library", "train", "metric"),
    [("xgboost", boost_xgboost, "eval-logloss"), ("lightgbm", boost_lightgbm, "eval-binary_logloss")],
)
def test_boosting_reports_rounds_and_checkpoints(library: str, train: Any, metric: str, tmp_path: Path) -> None:
    module = importlib.import_module(f"paceline.tune.integration.{library}")
    reported = run_trial(train, {"callback": module.TuneReportCallback({"loss": metric})}, storage_path=str(tmp_path))
    assert reported.metrics["training_iteration"] == 4
    assert 0 < reported.metrics["loss"] < 0.7
    assert reported.checkpoint is None

    callback = module.TuneReportCheckpointCallback(
        filename="mine.json", frequency=2, results_postprocessing_fn=lambda row: {"twice": 2 * row[metric]}
    )
    saved = run_trial(train, {"callback": callback}, storage_path=str(tmp_path))
    assert saved.metrics["twice"] == pytest.approx(2 * reported.metrics["loss"])
    assert len(saved.best_checkpoints) == 2
    assert saved.checkpoint is not None
    with saved.checkpoint.as_directory() as directory:
        assert "mine.json" in os.listdir(directory)


@pytest.mark.parametrize(
    ("library", "train", "metric"),
    [("xgboost", boost_xgboost, "test-logloss"), ("lightgbm", boost_lightgbm, "valid-binary_logloss-mean")],
)
def test_cross_validation_is_reported(library: str, train: Any, metric: str, tmp_path: Path) -> None:
    module = importlib.import_module(f"paceline.tune.integration.{library}")
    result = run_trial(train, {"callback": module.TuneReportCallback(), "cv": True}, storage_path=str(tmp_path))
    assert result.metrics["training_iteration"] == 3
    assert metric in result.metrics


class Line(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_lightning(config: dict[str, Any]) -> None:
    rows = torch.utils.data.TensorDataset(torch.from_numpy(ROWS.astype(np.float32)))
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=10)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callback = getattr(reporting, config["callback"])(**config["arguments"])
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback], enable_checkpointing=False, **quiet)
    trainer.fit(Line(), loader, loader)


@pytest.mark.filterwarnings("ignore")  # of Lightning about itself
def test_lightning_reports_validations_and_checkpoints(tmp_path: Path) -> None:
    config = {"callback": "TuneReportCallback", "arguments": {"metrics": {"loss": "val_loss"}}}
    reported = run_trial(fit_lightning, config, storage_path=str(tmp_path))
    assert reported.metrics["training_iteration"] == 2  # the sanity check does not count
    assert reported.metrics["loss"] >= 0
    assert reported.checkpoint is None

    config = {"callback": "TuneReportCheckpointCallback", "arguments": {"filename": "last.ckpt", "on": "train_end"}}
    saved = run_trial(fit_lightning, config, storage_path=str(tmp_path))
    assert saved.metrics["training_iteration"] == 1
    assert saved.checkpoint is not None
    with saved.checkpoint.as_directory() as directory:
        assert "state_dict" in torch.load(os.path.join(directory, "last.ckpt"), weights_only=False)


def test_lightning_has_no_such_hook() -> None:
    with pytest.raises(ConfigError, match="validation_ends"):
        reporting.TuneReportCallback(on="validation_ends")
    assert isinstance(reporting.TuneReportCallback(), pl.Callback)


def test_callbacks_of_retired_libraries_say_what_to_do() -> None:
    with pytest.raises(ImportError, match=r"session\.report"):
        exec("from paceline.tune.integration.mxnet import TuneReportCallback")
    with pytest.raises(ImportError, match="TuneReportCallback"):
        exec("from paceline.tune.integration.xgboost import TuneCallback")
