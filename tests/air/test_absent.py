"""Names that do not exist: every way of asking says what to write instead."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pydoc
import subprocess
import sys

import pytest

import paceline
from paceline import data, train, tune
from paceline.air.absent import AbsentNameError

FORMS = ["import {module}.{name}", "from {module} import {name}", "from {module} import {name} as other"]

ADVISED = [
    ("paceline.data", "read_mongo", r"from_arrow\(\)"),
    ("paceline.train", "mosaic", "TorchTrainer"),
    ("paceline.air.util", "torch_dist", "TorchTrainer"),
    ("paceline.tune.search", "ax", "AxSearch.*OptunaSearch"),
    ("paceline.tune.search", "AxSearch", "OptunaSearch"),
    ("paceline.tune.schedulers", "HyperBandForBOHB", "HyperBandScheduler"),
    ("paceline.tune.schedulers.hb_bohb", "HyperBandForBOHB", "HyperBandScheduler"),
    ("paceline.serve", "PredictorDeployment", r"serve\.run"),
    *((("paceline", name, "ProcessPoolExecutor")) for name in ("remote", "wait")),
    *((("paceline", name, "pass the object itself")) for name in ("get", "put")),
    *((("paceline", name, "os.cpu_count")) for name in ("available_resources", "cluster_resources", "nodes")),
]
MISSPELLED = [
    ("paceline", "trane", "did you mean train"),
    ("paceline.train", "ScallingConfig", "did you mean ScalingConfig"),
    ("paceline.train", "DataParalelTrainer", "did you mean DataParallelTrainer"),
    ("paceline.tune", "Tunner", "did you mean Tuner"),
    ("paceline.tune.schedulers", "ASHASheduler", "did you mean ASHAScheduler"),
    ("paceline.tune.search", "OptunaSerch", "did you mean OptunaSearch"),
    ("paceline.data", "read_parkuet", "did you mean read_parquet"),
    ("paceline.data.preprocessors", "StandartScaler", "did you mean StandardScaler"),
    ("paceline.air", "RunConfg", "did you mean RunConfig"),
    ("paceline.air.session", "get_chekpoint", "did you mean get_checkpoint"),
    ("paceline.tune.tuner", "Tunner", "did you mean Tuner"),
    ("paceline.data.aggregate", "Summ", "did you mean Sum"),
    ("paceline.tune.schedulers.pbt", "PopulationBasedTrainig", "did you mean PopulationBasedTraining"),
    ("paceline.train.torch", "TorchTrainr", "did you mean TorchTrainer"),
]


@pytest.mark.parametrize(("module", "name", "advice"), ADVISED + MISSPELLED)
def test_every_form_says_what_to_write_instead(module: str, name: str, advice: str) -> None:
    loaded = importlib.import_module(module)
    assert not hasattr(loaded, name)
    for form in FORMS:
        with pytest.raises(ImportError, match=advice) as caught:
            exec(form.format(module=module, name=name))
        assert name in str(caught.value).splitlines()[0]
    with pytest.raises(ImportError, match=advice):
        importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize(
    ("module", "name", "advice"), [each for each in ADVISED + MISSPELLED if each[1] != "TorchTrainr"]
)
def test_an_attribute_says_it_as_well(module: str, name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name}.*{advice}"):
        getattr(importlib.import_module(module), name)


def test_submodules_of_what_does_not_exist_say_it_too() -> None:
    with pytest.raises(ImportError, match="TorchTrainer"):
        exec("from paceline.train.mosaic.mosaic_trainer import MosaicTrainer")
    with pytest.raises(ImportError, match="RLTrainer"):
        exec("from paceline.rllib.algorithms.ppo import PPOConfig")


@pytest.mark.parametrize(
    "line", ["from paceline.tune import Quux", "import paceline.quux", "import paceline.train.Result"]
)
def test_names_like_no_other_fail_as_any_import_does(line: str) -> None:
    with pytest.raises(ImportError, match=r"Quux|quux|Result"):
        exec(line)


def test_what_programs_probe_for_stays_false() -> None:
    assert not hasattr(paceline, "remote")
    assert getattr(data, "read_mongo", None) is None
    with pytest.raises(AttributeError):
        pickle.loads(b"cpaceline.data\nread_mongo\n.")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("paceline.train.mosaic")


def test_inspection_sees_only_what_exists() -> None:
    for module in (paceline, data, train, tune):
        assert "read_mongo" not in dir(module)
        assert inspect.getmodule(module) is module
        assert not hasattr(module, "__wrapped__")
    assert "Tuner" in pydoc.render_doc(tune)


def test_the_error_can_be_pickled() -> None:
    with pytest.raises(AbsentNameError) as caught:
        _ = data.read_mongo
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_uncaught_error_says_it_once() -> None:
    for line in ("import paceline; paceline.train.ScallingConfig", "from paceline.train import ScallingConfig"):
        ended = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False, timeout=60)
        assert ended.stderr.lower().count("did you mean") == 1, ended.stderr


def test_the_finder_is_there_once() -> None:
    before = len(sys.meta_path)
    importlib.reload(paceline)
    assert len(sys.meta_path) == before
