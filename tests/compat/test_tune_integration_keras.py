"""Callbacks of Keras that report from inside of a function trainable."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.tune.integration.keras import TuneReportCallback, TuneReportCheckpointCallback
from tests.tune.trainable.one_trial import run_trial


@pytest.fixture(scope="module", autouse=True)
def keras_is_loaded() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras  # noqa: F401
        import tensorflow  # noqa: F401


def fit(config: dict[str, Any]) -> None:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", run_eagerly=True)  # tracing takes a second
    model.fit(np.ones((4, 2)), np.ones(4), epochs=2, verbose=0, callbacks=[config["make"]()])


def test_keras_reports_epochs_and_checkpoints(tmp_path: Path) -> None:
    reported = run_trial(fit, {"make": lambda: TuneReportCallback({"mean_loss": "loss"})}, storage_path=str(tmp_path))
    assert reported.metrics["training_iteration"] == 2
    assert "mean_loss" in reported.metrics
    assert reported.checkpoint is None

    saved = run_trial(fit, {"make": lambda: TuneReportCheckpointCallback(frequency=2)}, storage_path=str(tmp_path))
    assert len(saved.best_checkpoints) == 1
    assert saved.checkpoint is not None
    with saved.checkpoint.as_directory() as directory:
        import keras

        assert keras.models.load_model(os.path.join(directory, "checkpoint.keras")).count_params() == 3
