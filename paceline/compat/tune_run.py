"""tune.run() and run_experiments(): the older API, built on a Tuner."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from paceline.air.config import CheckpointConfig, RunConfig, SyncConfig
from paceline.air.errors import ConfigError, TuneError
from paceline.air.resources import PlacementGroupFactory
from paceline.air.words import counted
from paceline.compat.experiment_analysis import ExperimentAnalysis
from paceline.compat.tune_experiment import TuneExperiment, with_meaning
from paceline.run.spec import Trial
from paceline.storage.run_dir import default_storage_root, resolve_storage, uri_below
from paceline.tune.result_grid import Mode, ResultGrid
from paceline.tune.tuner import TuneConfig, Tuner, raises_tune_errors

_MOST_ERRORS_SHOWN = 5
_WHICH_TRIALS: dict[str, dict[str, Any]] = {
    "": {},
    "ERRORED": {"resume_errored": True},
    "ERRORED_ONLY": {"resume_errored": True, "resume_unfinished": False},
    "RESTART_ERRORED": {"restart_errored": True},
    "RESTART_ERRORED_ONLY": {"restart_errored": True, "resume_unfinished": False},
}
"""What `resume` may say after a "+", as arguments of Tuner.restore()."""


@raises_tune_errors
def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    metric: str | None = None,
    mode: Mode | None = None,
    stop: Any = None,
    time_budget_s: float | datetime.timedelta | None = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Mapping[str, float] | PlacementGroupFactory | Callable[..., Any] | None = None,
    num_samples: int = 1,
    storage_path: str | os.PathLike[str] | None = None,
    storage_filesystem: Any = None,
    search_alg: Any = None,
    scheduler: Any = None,
    checkpoint_config: CheckpointConfig | None = None,
    verbose: int | None = None,
    progress_reporter: Any = None,
    log_to_file: bool | str | tuple[str, str] = False,
    trial_name_creator: Callable[[Any], str] | None = None,
    trial_dirname_creator: Callable[[Any], str] | None = None,
    chdir_to_trial_dir: bool = True,
    sync_config: SyncConfig | None = None,
    max_failures: int = 0,
    fail_fast: bool | Literal["raise"] = False,
    resume: bool | str = False,
    reuse_actors: bool | None = None,
    raise_on_failed_trial: bool = True,
    callbacks: Sequence[Any] | None = None,
    max_concurrent_trials: int | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    keep_checkpoints_num: int | None = None,
    checkpoint_score_attr: str | None = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool | None = None,
    checkpoint_keep_all_ranks: bool = False,
    **others: Any,
) -> ExperimentAnalysis:
    """Run the trials of a search and return what they reached; `Tuner` is the newer door.

    `config` is the space. `resume` continues the experiment of the same `name`: True must find one, "AUTO" starts anew
    if there is none, and "ERRORED_ONLY" or "AUTO+ERRORED" say that failed trials are taken up, too. Trials that failed
    make it raise TuneError, whose `.analysis` has the results, unless raise_on_failed_trial=False.
    """
    with_meaning(others, [each for each in inspect.signature(run).parameters if each != "others"], "tune.run()")
    tune_config = TuneConfig(
        metric=metric,
        mode=mode,
        search_alg=search_alg,
        scheduler=scheduler,
        max_concurrent_trials=max_concurrent_trials,
        reuse_actors=reuse_actors,
        chdir_to_trial_dir=chdir_to_trial_dir,
    )
    if _are_experiments(run_or_experiment):
        experiments = _experiments(run_or_experiment)
    else:
        experiments = [
            TuneExperiment(
                name,
                run_or_experiment,
                stop=stop,
                time_budget_s=time_budget_s,
                config=config,
                resources_per_trial=resources_per_trial,
                num_samples=num_samples,
                storage_path=storage_path,
                storage_filesystem=storage_filesystem,
                checkpoint_config=checkpoint_config,
                sync_config=sync_config,
                trial_name_creator=trial_name_creator,
                trial_dirname_creator=trial_dirname_creator,
                log_to_file=log_to_file,
                max_failures=max_failures,
                local_dir=local_dir,
                keep_checkpoints_num=keep_checkpoints_num,
                checkpoint_score_attr=checkpoint_score_attr,
                checkpoint_freq=checkpoint_freq,
                checkpoint_at_end=checkpoint_at_end,
                checkpoint_keep_all_ranks=checkpoint_keep_all_ranks,
            )
        ]
    watching = {"callbacks": list(callbacks or []), "progress_reporter": progress_reporter}
    if verbose is not None:
        watching["verbose"] = verbose
    grids = []
    for experiment in experiments:
        run_config = experiment.run_config(fail_fast=fail_fast, **watching)
        # Of several, each has a search and a schedule of its own; the only one has the user's very object.
        own = tune_config if len(experiments) == 1 else copy.deepcopy(tune_config)
        grids.append(_run_one(experiment, own, run_config, resume))
    grid = grids[0] if len(grids) == 1 else _joined(grids)
    analysis = ExperimentAnalysis(grid, metric, mode)
    if raise_on_failed_trial and grid.num_errors:
        raise _failed_trials(grid, analysis) from grid.errors[0]
    return analysis


@raises_tune_errors
def run_experiments(
    experiments: TuneExperiment | Sequence[TuneExperiment] | Mapping[str, Any],
    scheduler: Any = None,
    *,
    verbose: int | None = None,
    progress_reporter: Any = None,
    resume: bool | str = False,
    reuse_actors: bool | None = None,
    raise_on_failed_trial: bool = True,
    callbacks: Sequence[Any] | None = None,
    **others: Any,
) -> list[Trial]:
    """Run experiments one after the other: `Experiment` objects, or {name: settings}. Returns all their trials."""
    known = [each for each in inspect.signature(run_experiments).parameters if each != "others"]
    others.pop("concurrent", None)  # whether experiments share the machine; here the trials of one fill it
    with_meaning(others, known, "run_experiments()")
    return run(
        _experiments(experiments),
        scheduler=scheduler,
        verbose=verbose,
        progress_reporter=progress_reporter,
        resume=resume,
        reuse_actors=reuse_actors,
        raise_on_failed_trial=raise_on_failed_trial,
        callbacks=callbacks,
    ).trials


def _are_experiments(given: Any) -> bool:
    return isinstance(given, TuneExperiment | list | tuple)


def _experiments(given: Any) -> list[TuneExperiment]:
    if isinstance(given, TuneExperiment):
        return [given]
    if isinstance(given, Mapping):
        return [
            each if isinstance(each, TuneExperiment) else TuneExperiment.from_json(name, each)
            for name, each in given.items()
        ]
    experiments = list(given)
    strange = next((each for each in experiments if not isinstance(each, TuneExperiment)), None)
    if strange is not None or not experiments:
        raise ConfigError(f"Experiments are a list of Experiment objects or {{name: settings}}, not {given!r}.")
    return experiments


def _run_one(experiment: TuneExperiment, shared: TuneConfig, run_config: RunConfig, resume: bool | str) -> ResultGrid:
    tune_config = dataclasses.replace(
        shared,
        num_samples=experiment.num_samples,
        time_budget_s=experiment.time_budget_s,
        trial_name_creator=experiment.trial_name_creator,
        trial_dirname_creator=experiment.trial_dirname_creator,
    )
    settings: dict[str, Any] = {
        "param_space": experiment.config,
        "tune_config": tune_config,
        "run_config": run_config,
    }
    if resume:
        must_exist, which = _read_resume(resume)
        path, filesystem = _place(run_config), run_config.storage_filesystem
        if must_exist or Tuner.can_restore(path, filesystem):
            tuner = Tuner.restore(path, experiment.trainable, storage_filesystem=filesystem, **which, **settings)
            return tuner.fit()
    return Tuner(experiment.trainable, **settings).fit()


def _joined(grids: list[ResultGrid]) -> ResultGrid:
    """The trials of several experiments; the place is that of the first."""
    outcomes = [outcome for grid in grids for outcome in grid.outcomes]
    first = grids[0]
    return ResultGrid(outcomes, experiment_path=first.experiment_path, metric=first.metric, mode=first.mode)


def _read_resume(resume: bool | str) -> tuple[bool, dict[str, Any]]:
    """(whether there must be an experiment to continue, which of its trials are taken up)"""
    where, _, which = ("LOCAL" if resume is True else str(resume).upper()).partition("+")
    if where in _WHICH_TRIALS:
        where, which = "LOCAL", where
    if where not in ("AUTO", "LOCAL", "REMOTE") or which not in _WHICH_TRIALS:
        raise ConfigError(
            f"resume is {resume!r}: use True, False, 'AUTO' (continue if there is something), or one of these with "
            f"{', '.join(f'+{each}' for each in _WHICH_TRIALS if each)}, such as 'AUTO+ERRORED'."
        )
    return where != "AUTO", _WHICH_TRIALS[which]


def _place(run_config: RunConfig) -> str:
    """The directory of the experiment that is to be continued."""
    if run_config.name is None:
        raise ConfigError("resume= continues the experiment of the same name: say which with name=.")
    root = resolve_storage(run_config.storage_path or default_storage_root())
    return str(root / run_config.name) if isinstance(root, Path) else uri_below(root, run_config.name)


def _failed_trials(grid: ResultGrid, analysis: ExperimentAnalysis) -> TuneError:
    shown = [
        f"  {outcome.trial.trial_id}: {type(outcome.error).__name__}: {(str(outcome.error).splitlines() or [''])[0]}"
        for outcome in grid.outcomes
        if outcome.error is not None
    ]
    more = len(shown) - _MOST_ERRORS_SHOWN
    lines = shown[:_MOST_ERRORS_SHOWN] + ([f"  and {more} more"] if more > 0 else [])
    error = TuneError(
        f"{grid.num_errors} of {counted(len(grid), 'trial')} failed:\n"
        + "\n".join(lines)
        + "\nThe results of all are in "
        ".analysis of this error; raise_on_failed_trial=False returns them."
    )
    error.analysis = analysis  # type: ignore[attr-defined]
    return error
