"""What TransformersTrainer and the arguments of a training must say, without any training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  # sets variables when it is imported, which no test shall be blamed for
from transformers import TrainingArguments

import paceline.data
from paceline.air import ScalingConfig
from paceline.air.config import DataConfig
from paceline.air.errors import ConfigError, MissingDatasetError
from paceline.train import huggingface
from paceline.train.huggingface import TransformersTrainer
from paceline.train.huggingface.transformers.training_arguments import check_loading, check_strategies
from paceline.train.torch import TorchConfig

ROWS = paceline.data.from_items([{"x": 1}])


def make_trainer(train_dataset: Any, eval_dataset: Any, **config: Any) -> Any:
    raise AssertionError("this is called in workers only")


def trainer(function: Any = make_trainer, **arguments: Any) -> TransformersTrainer:
    return TransformersTrainer(function, scaling_config=ScalingConfig(num_workers=2), **arguments)


def test_old_and_new_names_are_the_same() -> None:
    assert huggingface.HuggingFaceTrainer is huggingface.TransformersTrainer
    assert huggingface.HuggingFaceCheckpoint is huggingface.TransformersCheckpoint
    assert huggingface.HuggingFacePredictor is huggingface.TransformersPredictor
    assert huggingface.transformers.RayTrainReportCallback is huggingface.transformers.ReportCallback


def test_importing_the_trainer_loads_no_framework() -> None:
    program = (
        "import sys\n"
        "from paceline.train.huggingface import TransformersTrainer, TransformersCheckpoint, TransformersPredictor\n"
        "from paceline.train.huggingface.transformers import prepare_trainer\n"
        "print([name for name in ('torch', 'transformers', 'accelerate') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_named_with_its_extra() -> None:
    program = (
        "import importlib.util, sys\n"
        "there = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'accelerate' else there(name, *rest)\n"
        "try:\n"
        "    from paceline.train.huggingface import TransformersTrainer\n"
        "except ImportError as error:\n"
        "    print(error.name, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("accelerate ")
    assert "pip install 'paceline[huggingface]'" in done.stdout


def no_argument() -> None: ...


def one_argument(train_dataset: Any) -> None: ...


def named(train_dataset: Any, eval_dataset: Any, rate: float) -> None: ...


@pytest.mark.parametrize(
    ("function", "config", "message"),
    [
        ("make", None, "trainer_init_per_worker.*function.*str"),
        (no_argument, None, r"no_argument\(train_dataset, eval_dataset, \*\*"),
        (one_argument, None, r"one_argument\(train_dataset, eval_dataset, \*\*"),
        (named, {"speed": 1}, "named.*'rate'"),
        (make_trainer, [1], "trainer_init_config.*dict.*list"),
        (make_trainer, {1: 2}, r"trainer_init_config.*\b1\b.*string"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(function: Any, config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(function, trainer_init_config=config)


def test_datasets_have_two_names() -> None:
    with pytest.raises(ConfigError, match=r"'valid'.*'train'.*'evaluation'"):
        trainer(datasets={"train": ROWS, "valid": ROWS})
    with pytest.raises(MissingDatasetError, match=r"datasets.*'train'"):
        trainer(datasets={"evaluation": ROWS})
    with pytest.raises(ConfigError, match="uneven='equal'"):
        trainer(datasets={"train": ROWS}, dataset_config=DataConfig(uneven="all"))
    with pytest.raises(ConfigError, match=r"'evaluation'.*split"):
        trainer(datasets={"train": ROWS, "evaluation": ROWS}, dataset_config=DataConfig(datasets_to_split="all"))
    with pytest.raises(ConfigError, match=r"dict.*TorchConfig"):
        trainer(torch_config={"backend": "gloo"})


def test_settings_of_the_process_group_are_kept() -> None:
    config = trainer(torch_config=TorchConfig(backend="gloo", timeout_s=7)).backend_config
    assert (config.backend, config.timeout_s) == ("gloo", 7)
    assert "transformers.loaders" in config.backend_cls.preload[-1]


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"save_strategy": "epoch"}, "logging_strategy='epoch' or save_strategy='steps'"),
        ({"eval_strategy": "epoch"}, "logging_strategy='epoch' or eval_strategy='steps'"),
        ({"logging_strategy": "no"}, "logging_strategy='steps' or save_strategy='no'"),
        ({"eval_strategy": "steps", "eval_steps": 20, "logging_steps": 10}, "logging_steps=20"),
        ({"logging_steps": 10, "save_steps": 25}, "save_steps=30"),
        ({"logging_steps": 10, "save_steps": 5}, "save_steps=10"),
        ({"logging_steps": 0.1, "save_steps": 20}, "multiple of logging_steps"),
        ({"save_strategy": "best", "metric_for_best_model": "loss"}, "checkpoint_score_attribute='eval_loss'"),
        (
            {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 500},
            "checkpoint_score_attribute='eval_loss'",
        ),
    ],
)
def test_strategies_that_do_not_go_together_are_refused(tmp_path: Path, settings: Any, advice: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_strategies(TrainingArguments(str(tmp_path), use_cpu=True, **settings))
    assert advice in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"logging_strategy": "epoch", "eval_strategy": "epoch", "save_strategy": "epoch"},
        {"logging_strategy": "epoch", "save_strategy": "no"},
        {"logging_steps": 10, "save_steps": 30, "eval_strategy": "steps"},
        {"logging_steps": 0.1, "save_steps": 0.3},
    ],
)
def test_strategies_that_go_together_are_taken(tmp_path: Path, settings: Any) -> None:
    check_strategies(TrainingArguments(str(tmp_path), use_cpu=True, **settings))


def test_other_processes_cannot_read_datasets_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dataloader_num_workers=2"):
        check_loading(TrainingArguments(str(tmp_path), use_cpu=True, dataloader_num_workers=2))
