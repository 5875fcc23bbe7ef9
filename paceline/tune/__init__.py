"""Tuning: a Tuner, what it searches over, and who decides. Each name is loaded on first use."""

from __future__ import annotations

from paceline.air.lazy import lazy_imports

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

with lazy_imports(__name__, _MODULES, _ADVICE):
    from paceline.air.checkpoint import Checkpoint as Checkpoint
    from paceline.air.config import CheckpointConfig as CheckpointConfig
    from paceline.air.config import FailureConfig as FailureConfig
    from paceline.air.config import RunConfig as RunConfig
    from paceline.air.config import SyncConfig as SyncConfig
    from paceline.air.errors import TuneError as TuneError
    from paceline.air.resources import PlacementGroupFactory as PlacementGroupFactory
    from paceline.compat.experiment_analysis import ExperimentAnalysis as ExperimentAnalysis
    from paceline.compat.tune_experiment import Experiment as Experiment
    from paceline.compat.tune_run import run as run
    from paceline.compat.tune_run import run_experiments as run_experiments
    from paceline.run.callbacks import Callback as Callback
    from paceline.run.spec import Trial as Trial
    from paceline.run.stoppers import Stopper as Stopper
    from paceline.tune.by_name import create_scheduler as create_scheduler
    from paceline.tune.by_name import create_searcher as create_searcher
    from paceline.tune.progress.reporters import CLIReporter as CLIReporter
    from paceline.tune.progress.reporters import JupyterNotebookReporter as JupyterNotebookReporter
    from paceline.tune.progress.reporters import ProgressReporter as ProgressReporter
    from paceline.tune.registry import register_env as register_env
    from paceline.tune.registry import register_trainable as register_trainable
    from paceline.tune.result_grid import ResultGrid as ResultGrid
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
    from paceline.tune.trainable.parameters import with_parameters as with_parameters
    from paceline.tune.trainable.parameters import with_resources as with_resources
    from paceline.tune.trainable.session import checkpoint_dir as checkpoint_dir
    from paceline.tune.trainable.session import get_checkpoint as get_checkpoint
    from paceline.tune.trainable.session import get_context as get_context
    from paceline.tune.trainable.session import get_trial_dir as get_trial_dir
    from paceline.tune.trainable.session import get_trial_id as get_trial_id
    from paceline.tune.trainable.session import get_trial_name as get_trial_name
    from paceline.tune.trainable.session import get_trial_resources as get_trial_resources
    from paceline.tune.trainable.session import is_session_enabled as is_session_enabled
    from paceline.tune.trainable.session import report as report
    from paceline.tune.trainable.trainable import Trainable as Trainable
    from paceline.tune.tuner import TuneConfig as TuneConfig
    from paceline.tune.tuner import Tuner as Tuner
