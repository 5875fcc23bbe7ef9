"""What the constructors of all trainers say about wrong arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from sklearn.linear_model import LogisticRegression  # here, because it changes variables of the process

from paceline.air.config import ScalingConfig
from paceline.air.errors import ConfigError
from paceline.train import BaseTrainer, DataParallelTrainer
from paceline.train.horovod import HorovodTrainer
from paceline.train.huggingface import AccelerateTrainer, TransformersTrainer
from paceline.train.lightgbm import LightGBMTrainer
from paceline.train.lightning import LightningTrainer
from paceline.train.sklearn import SklearnTrainer
from paceline.train.tensorflow import TensorflowTrainer
from paceline.train.torch import TorchTrainer
from paceline.train.xgboost import XGBoostTrainer

WITH_A_FUNCTION = [
    DataParallelTrainer,
    TorchTrainer,
    TensorflowTrainer,
    HorovodTrainer,
    AccelerateTrainer,
    XGBoostTrainer,
    LightGBMTrainer,
]
ALL = [*WITH_A_FUNCTION, BaseTrainer, TransformersTrainer, LightningTrainer, SklearnTrainer]


def train_func(config: dict[str, Any]) -> None: ...


def needed(trainer: Any) -> dict[str, Any]:
    """The arguments that this trainer cannot do without."""
    if trainer is SklearnTrainer:
        return {"estimator": LogisticRegression(), "datasets": {}}
    if trainer is TransformersTrainer:
        return {"trainer_init_per_worker": lambda train_dataset, eval_dataset, **config: None}
    return {"train_loop_per_worker": train_func} if trainer in WITH_A_FUNCTION else {}


@pytest.mark.parametrize("trainer", ALL)
def test_a_misspelled_argument_is_named_with_the_right_one(trainer: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{trainer.__name__}\(\) .*'run_confg'.*run_config\?") as caught:
        trainer(**needed(trainer), run_confg=None)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize("trainer", [each for each in ALL if each is not SklearnTrainer])
def test_settings_of_the_configs_are_sent_there(trainer: Any) -> None:
    with pytest.raises(TypeError, match=r"'num_workers'.*scaling_config=ScalingConfig\(num_workers="):
        trainer(**needed(trainer), num_workers=2)
    with pytest.raises(TypeError, match=r"'max_failures'.*RunConfig\(failure_config=FailureConfig\(max_failures="):
        trainer(**needed(trainer), max_failures=2)


@pytest.mark.parametrize("trainer", WITH_A_FUNCTION[:5])
def test_usual_names_of_the_function_and_its_config_are_known(trainer: Any) -> None:
    with pytest.raises(TypeError, match=r"'config'.*train_loop_config\?"):
        trainer(train_func, config={})
    with pytest.raises(TypeError, match=r"'train_loop'.*train_loop_per_worker\?"):
        trainer(train_loop=train_func)


@pytest.mark.parametrize("trainer", ALL)
def test_a_dict_of_settings_is_answered_with_the_config_to_write(trainer: Any) -> None:
    with pytest.raises(ConfigError, match=r"scaling_config=ScalingConfig\(\*\*{'num_workers': 2}\)"):
        trainer(**needed(trainer), scaling_config={"num_workers": 2})


@pytest.mark.parametrize("trainer", [each for each in ALL if each is not BaseTrainer])
def test_the_signature_stays_visible(trainer: Any) -> None:
    parameters = inspect.signature(trainer).parameters
    common = {"scaling_config", "run_config", "datasets", "preprocessor", "metadata"}
    assert common <= parameters.keys()
    assert all(parameters[name].annotation is not inspect.Parameter.empty for name in common)
    assert "common" not in parameters


def test_a_class_of_the_users_own_gets_the_same_answers() -> None:
    class Named(TorchTrainer):
        def __init__(self, *args: Any, tag: str = "", **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.tag = tag

    with pytest.raises(TypeError, match=r"^Named\(\) .*'metdata'.*metadata\?"):
        Named(train_func, metdata={})
    assert Named(train_func, tag="first", scaling_config=ScalingConfig(num_workers=1)).tag == "first"
