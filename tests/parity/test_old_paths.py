"""Module paths of old programs lead to the classes of today, or say what to write instead."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("paceline.air.data_batch_type.DataBatchType", "paceline.air.DataBatchType"),
        ("paceline.data.dataset_iterator.DatasetIterator", "paceline.data.DatasetIterator"),
        ("paceline.data.grouped_dataset.GroupedDataset", "paceline.data.grouped_data.GroupedData"),
        ("paceline.train.predictor.DataBatchType", "paceline.air.DataBatchType"),
        (
            "paceline.train.tensorflow.keras.ReportCheckpointCallback",
            "paceline.air.integrations.keras.ReportCheckpointCallback",
        ),
        ("paceline.tune.result.TRAINING_ITERATION", "paceline.air.constants.TRAINING_ITERATION"),
        ("paceline.tune.sample.loguniform", "paceline.tune.loguniform"),
        ("paceline.tune.trial.Trial", "paceline.tune.experiment.Trial"),
    ],
)
def test_an_old_path_is_the_same_object(old: str, new: str) -> None:
    assert found(old) is found(new)
    module = old.rpartition(".")[0]
    package, _, name = module.rpartition(".")
    assert getattr(importlib.import_module(package), name) is importlib.import_module(module)


@pytest.mark.parametrize(
    ("old", "advice"),
    [
        ("paceline.ray.ml", "ray.air"),
        ("paceline.train.CheckpointStrategy", "CheckpointConfig"),
        ("paceline.train.Trainer", "TorchTrainer"),
        ("paceline.train.TrainingCallback", "tune.Callback"),
        ("paceline.train.callbacks.JsonLoggerCallback", "by itself"),
        ("paceline.train.callbacks.PrintCallback", "on_trial_result"),
        ("paceline.tune.integration.torch", "TorchTrainer"),
        ("paceline.tune.logger.DEFAULT_LOGGERS", "callbacks"),
    ],
)
def test_an_old_name_says_what_to_write(old: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=advice):
        found(old)


def found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
