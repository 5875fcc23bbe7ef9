"""Misspelled keyword arguments are answered with the right name, everywhere in the same way."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from paceline import train, tune
from paceline.air import session
from paceline.air.checks import names_what_was_meant
from paceline.air.config import (
    CheckpointConfig,
    DataConfig,
    DatasetConfig,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    SyncConfig,
)
from paceline.air.errors import ConfigError
from paceline.train.horovod import HorovodConfig
from paceline.train.lightgbm import LightGBMConfig
from paceline.train.tensorflow import TensorflowConfig
from paceline.train.torch import TorchConfig
from paceline.train.xgboost import XGBoostConfig
from paceline.tune import TuneConfig


@pytest.mark.parametrize(
    ("config", "misspelled", "meant"),
    [
        (ScalingConfig, "num_worker", "num_workers"),
        (RunConfig, "storagepath", "storage_path"),
        (FailureConfig, "max_failure", "max_failures"),
        (CheckpointConfig, "num_to_kep", "num_to_keep"),
        (SyncConfig, "uploaddir", "upload_dir"),
        (DataConfig, "dataset_to_split", "datasets_to_split"),
        (DatasetConfig, "globalshuffle", "global_shuffle"),
        (TuneConfig, "num_sample", "num_samples"),
        (TorchConfig, "timeout", "timeout_s"),
        (HorovodConfig, "timeout", "timeout_s"),
        (XGBoostConfig, "timeout", "timeout_s"),
        (LightGBMConfig, "timeout", "there are none"),
        (TensorflowConfig, "timeout", "there are none"),
        (RunConfig, "max_failures", r"failure_config=FailureConfig\(max_failures=...\)"),
        (RunConfig, "num_to_keep", r"checkpoint_config=CheckpointConfig\(num_to_keep=...\)"),
    ],
)
def test_a_misspelled_setting_is_named_with_the_right_one(config: Any, misspelled: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"^{config.__name__}\(\) .*'{misspelled}'.*{meant}") as caught:
        config(**{misspelled: 1})
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize("config", [ScalingConfig, RunConfig, TorchConfig, TensorflowConfig, TuneConfig, DatasetConfig])
def test_the_signature_of_a_config_stays_visible(config: Any) -> None:
    parameters = inspect.signature(config).parameters
    assert list(parameters) == list(config.__dataclass_fields__)


@pytest.mark.parametrize("report", [session.report, train.report, tune.report])
def test_a_misspelled_argument_of_report_is_named(report: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"^report\(\) .*'chekpoint'.*checkpoint\?"):
        report({"loss": 1.0}, chekpoint=None)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("failure_config", lambda given: RunConfig(failure_config=given)),
        ("checkpoint_config", lambda given: RunConfig(checkpoint_config=given)),
        ("sync_config", lambda given: RunConfig(sync_config=given)),
        ("run_config", lambda given: tune.Tuner(print, run_config=given)),
        ("tune_config", lambda given: tune.Tuner(print, tune_config=given)),
        ("scaling_config", lambda given: train.BaseTrainer(scaling_config=given)),
        ("run_config", lambda given: train.BaseTrainer(run_config=given)),
    ],
)
def test_a_dict_in_place_of_a_config_is_answered_with_what_to_write(name: str, make: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=\w+Config\(\*\*{{'verbose': 1}}\)"):
        make({"verbose": 1})


def test_the_class_in_place_of_a_config_is_answered_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"scaling_config=ScalingConfig\("):
        train.BaseTrainer(scaling_config=ScalingConfig)  # type: ignore[arg-type]


def test_a_required_argument_may_be_misspelled_where_any_keyword_is_taken() -> None:
    @names_what_was_meant()
    def fit(*, estimator: Any, **rest: Any) -> Any:
        return rest

    with pytest.raises(TypeError, match=r"^fit\(\) .*'estimater'.*estimator\?"):
        fit(estimater=1)
    assert fit(estimator=1, estimater=2) == {"estimater": 2}


def test_names_are_listed_where_none_is_near() -> None:
    with pytest.raises(TypeError, match=r"'xyzzy'.*upload_dir, syncer"):
        SyncConfig(xyzzy=1)  # type: ignore[call-arg]
