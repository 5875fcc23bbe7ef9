"""Tuning: a Tuner, what it searches over, and who decides. Each name is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint as Checkpoint
    from paceline.air.config import CheckpointConfig as CheckpointConfig
    from paceline.air.config import FailureConfig as FailureConfig
    from paceline.air.config import RunConfig as RunConfig
    from paceline.air.config import SyncConfig as SyncConfig
    from paceline.air.resources import PlacementGroupFactory as PlacementGroupFactory
    from paceline.run.callbacks import Callback as Callback
    from paceline.run.stoppers import Stopper as Stopper
    from paceline.tune.analysis import ExperimentAnalysis as ExperimentAnalysis
    from paceline.tune.error import TuneError as TuneError
    from paceline.tune.legacy_experiment import Experiment as Experiment
    from paceline.tune.legacy_run import run as run
    from paceline.tune.legacy_run import run_experiments as run_experiments
    from paceline.tune.progress_reporter import CLIReporter as CLIReporter
    from paceline.tune.progress_reporter import JupyterNotebookReporter as JupyterNotebookReporter
    from paceline.tune.progress_reporter import ProgressReporter as ProgressReporter
    from paceline.tune.registry import register_env as register_env
    from paceline.tune.registry import register_trainable as register_trainable
    from paceline.tune.result_grid import ResultGrid as ResultGrid
    from paceline.tune.schedulers.create import create_scheduler as create_scheduler
    from paceline.tune.search.create import create_searcher as create_searcher
    from paceline.tune.search.sample import choice as choice
    from paceline.tune.search.sample import grid_search as grid_search
    from paceline.tune.search.sample import lograndint as lograndint
    from paceline.tune.search.sample import loguniform as loguniform
    from paceline.tune.search.sample import qlograndint as qlograndint
    from paceline.tune.search.sample import qloguniform as qloguniform
    from paceline.tune.search.sample import qrandint as qrandint
    from paceline.tune.search.sample import qrandn as qrandn
    from paceline.tune.search.sample import quniform as quniform
    from paceline.tune.search.sample import randint as randint
    from paceline.tune.search.sample import randn as randn
    from paceline.tune.search.sample import sample_from as sample_from
    from paceline.tune.search.sample import uniform as uniform
    from paceline.tune.trainable.legacy_session import checkpoint_dir as checkpoint_dir
    from paceline.tune.trainable.legacy_session import report as report
    from paceline.tune.trainable.parameters import with_parameters as with_parameters
    from paceline.tune.trainable.resources import with_resources as with_resources
    from paceline.tune.trainable.trainable import Trainable as Trainable
    from paceline.tune.tune_config import TuneConfig as TuneConfig
    from paceline.tune.tuner import Tuner as Tuner

_SPACE = (
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
)
_IN_A_TRIAL = (
    "checkpoint_dir",
    "get_checkpoint",
    "get_context",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "is_session_enabled",
    "report",
)
_HOMES = {
    "CLIReporter": "paceline.tune.progress_reporter",
    "Callback": "paceline.tune.callback",
    "Checkpoint": "paceline.air.checkpoint",
    "CheckpointConfig": "paceline.air.config",
    "Experiment": "paceline.tune.legacy_experiment",
    "ExperimentAnalysis": "paceline.tune.analysis",
    "FailureConfig": "paceline.air.config",
    "JupyterNotebookReporter": "paceline.tune.progress_reporter",
    "PlacementGroupFactory": "paceline.air.resources",
    "ProgressReporter": "paceline.tune.progress_reporter",
    "ResultGrid": "paceline.tune.result_grid",
    "RunConfig": "paceline.air.config",
    "Stopper": "paceline.tune.stopper",
    "SyncConfig": "paceline.air.config",
    "Trainable": "paceline.tune.trainable.trainable",
    "TuneConfig": "paceline.tune.tune_config",
    "TuneError": "paceline.tune.error",
    "Tuner": "paceline.tune.tuner",
    "create_scheduler": "paceline.tune.schedulers.create",
    "create_searcher": "paceline.tune.search.create",
    "register_env": "paceline.tune.registry",
    "register_trainable": "paceline.tune.registry",
    "run": "paceline.tune.legacy_run",
    "run_experiments": "paceline.tune.legacy_run",
    "with_parameters": "paceline.tune.trainable.parameters",
    "with_resources": "paceline.tune.trainable.resources",
    **dict.fromkeys(_SPACE, "paceline.tune.search.sample"),
    **dict.fromkeys(_IN_A_TRIAL, "paceline.tune.trainable.legacy_session"),
}
_MODULES = (
    "analysis",
    "callback",
    "error",
    "execution",
    "experiment",
    "integration",
    "logger",
    "progress_reporter",
    "registry",
    "result",
    "result_grid",
    "sample",
    "schedulers",
    "search",
    "stopper",
    "syncer",
    "trainable",
    "trial",
    "tune_config",
    "tuner",
    "utils",
)
_ADVICE = {
    "resources": 'tune.with_resources(trainable, {"cpu": 2}) says what a trial needs',
    "sklearn": "fit the estimator in a function for tune.Tuner, or use paceline.train.sklearn.SklearnTrainer",
    "web_server": "callbacks in RunConfig(callbacks=[...]) see what a search does, and files in its directory show it",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"paceline.tune.{name}")
    raise no_such_name(__name__, name, _ADVICE)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
