"""Without a framework everything else works, and importing its trainer says what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Run by every interpreter that starts, workers too: what is hidden is found by nobody.
HIDE = """
import os
import sys
from importlib.machinery import PathFinder

HIDDEN = set(os.environ["PACELINE_TEST_HIDDEN"].split(","))


class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] in HIDDEN:
            return None
        return super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""

TRAINERS = {
    "paceline.train.torch.TorchTrainer": "pip install 'paceline[torch]'",
    "paceline.train.tensorflow.TensorflowTrainer": "pip install 'paceline[tensorflow]'",
    "paceline.train.jax.JaxTrainer": "pip install 'paceline[jax]'",
    "paceline.train.horovod.HorovodTrainer": "make horovod",
    "paceline.train.huggingface.TransformersTrainer": "pip install 'paceline[huggingface]'",
    "paceline.train.huggingface.transformers.TransformersTrainer": "pip install 'paceline[huggingface]'",
    "paceline.train.huggingface.AccelerateTrainer": "pip install 'paceline[huggingface]'",
    "paceline.train.huggingface.accelerate.AccelerateTrainer": "pip install 'paceline[huggingface]'",
    "paceline.train.lightning.LightningTrainer": "pip install 'paceline[lightning]'",
    "paceline.train.xgboost.XGBoostTrainer": "pip install 'paceline[xgboost]'",
    "paceline.train.lightgbm.LightGBMTrainer": "pip install 'paceline[lightgbm]'",
    "paceline.train.sklearn.SklearnTrainer": "pip install 'paceline[sklearn]'",
}
"""Every trainer, and what a user reads who has not installed its framework."""

NEEDED_BY = {
    "torch": ("torch", "huggingface", "lightning"),
    "tensorflow": ("tensorflow",),
    "jax": ("jax",),
    "horovod": ("horovod",),
    "transformers": ("huggingface.TransformersTrainer", "huggingface.transformers"),
    "accelerate": ("huggingface",),
    "lightning": ("lightning",),
    "xgboost": ("xgboost",),
    "lightgbm": ("lightgbm",),
    "sklearn": ("sklearn",),
}
"""What is hidden, and the parts of paceline.train that do not work without it."""
OTHER_NAMES = {"lightning": ("lightning", "pytorch_lightning"), "tensorflow": ("tensorflow", "tf_keras", "keras")}

IMPORT_ALL = """
import importlib, json, sys
import paceline, paceline.data, paceline.train, paceline.tune
from paceline.train import BatchPredictor, DataParallelTrainer
import paceline.train.predictor

refused = {}
for place in json.loads(sys.argv[1]):
    module, _, name = place.rpartition(".")
    try:
        getattr(importlib.import_module(module), name)
    except ImportError as error:
        refused[place] = [str(error), error.name]
print(json.dumps(refused))
"""


def run_without(hidden: list[str], program: str, folder: Path, *arguments: str) -> str:
    """What a program prints in an interpreter, and with workers, that find none of the hidden packages."""
    (folder / "sitecustomize.py").write_text(HIDE)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "PACELINE_TEST_HIDDEN": ",".join(hidden)}
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("framework", NEEDED_BY)
def test_a_missing_framework_is_asked_for_by_its_trainer_alone(framework: str, tmp_path: Path) -> None:
    hidden = OTHER_NAMES.get(framework, (framework,))
    refused = json.loads(run_without([*hidden], IMPORT_ALL, tmp_path, json.dumps([*TRAINERS])))
    prefixes = tuple(f"paceline.train.{part}." for part in NEEDED_BY[framework])
    assert set(refused) == {place for place in TRAINERS if f"{place}.".startswith(prefixes)}
    for place, (message, name) in refused.items():
        assert TRAINERS[place] in message
        assert name in hidden


TRACKERS = {
    "paceline.air.integrations.mlflow.MLflowLoggerCallback": "mlflow",
    "paceline.air.integrations.mlflow.setup_mlflow": "mlflow",
    "paceline.air.integrations.wandb.WandbLoggerCallback": "wandb",
    "paceline.air.integrations.wandb.setup_wandb": "wandb",
    "paceline.air.integrations.comet.CometLoggerCallback": "comet",
    "paceline.tune.logger.aim.AimLoggerCallback": "aim",
    "paceline.tune.integration.mlflow.MLflowLoggerCallback": "mlflow",
}
"""Every name of a tracker, and the extra that it needs."""


def test_a_missing_tracker_names_its_extra_when_its_callback_is_imported(tmp_path: Path) -> None:
    refused = json.loads(
        run_without(["aim", "comet_ml", "mlflow", "wandb"], IMPORT_ALL, tmp_path, json.dumps([*TRACKERS]))
    )
    for place, extra in TRACKERS.items():
        assert f"pip install 'paceline[{extra}]'" in refused[place][0]


TRAIN_WITH_TORCH = """
from importlib.util import find_spec

import torch

from paceline.air import RunConfig, ScalingConfig
from paceline.train import report
from paceline.train.torch import TorchCheckpoint, TorchPredictor, TorchTrainer, prepare_model


def train_func():
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features = torch.randn(64, 4)
    for _ in range(3):
        loss = ((model(features) - features.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        others = [name for name in ("tensorflow", "transformers", "xgboost", "sklearn") if find_spec(name)]
        report({"loss": loss.item(), "others": others}, checkpoint=TorchCheckpoint.from_model(model))


if __name__ == "__main__":
    result = TorchTrainer(
        train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0)
    ).fit()
    losses = list(result.metrics_dataframe["loss"])
    assert losses[-1] < losses[0]
    assert result.metrics["others"] == []
    predictor = TorchPredictor.from_checkpoint(result.checkpoint, model=torch.nn.Linear(4, 1))
    print(predictor.predict(torch.ones(2, 4).numpy())["predictions"].shape)
"""


@pytest.mark.slow
def test_with_only_torch_a_network_is_trained_and_used(tmp_path: Path) -> None:
    hidden = {name for framework in NEEDED_BY for name in OTHER_NAMES.get(framework, (framework,))} - {"torch"}
    assert run_without(sorted(hidden), TRAIN_WITH_TORCH, tmp_path) == "(2, 1)\n"
