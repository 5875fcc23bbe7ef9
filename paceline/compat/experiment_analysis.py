"""ExperimentAnalysis: the results of an experiment as older code asks for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.absent import advise
from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import near_miss, warn_at_users_line
from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import ConfigError, TuneError
from paceline.air.metrics import flattened
from paceline.run.spec import Trial
from paceline.tune.result_grid import Mode, ResultGrid
from paceline.tune.trial_outcome import Scope, TrialOutcome, number_at

if TYPE_CHECKING:
    import pandas


class ExperimentAnalysis:
    """What tune.run() returns, or what the directory of an experiment contains.

    It answers from a ResultGrid, which reads files when they are needed. `default_metric` and `default_mode` stand in
    where a question names none; they are those of the experiment unless given.
    """

    def __init__(
        self,
        experiment_checkpoint_path: str | os.PathLike[str] | ResultGrid,
        default_metric: str | None = None,
        default_mode: Mode | None = None,
    ) -> None:
        """`experiment_checkpoint_path` is the experiment's directory, its journal in there, or a grid."""
        given = experiment_checkpoint_path
        self._grid = given if isinstance(given, ResultGrid) else _read_grid(os.fspath(given))
        self.default_metric = default_metric or self._grid.metric
        self.default_mode = default_mode or self._grid.mode
        self._outcomes = {outcome.trial.trial_id: outcome for outcome in self._grid.outcomes}

    @property
    def experiment_path(self) -> str:
        return self._grid.experiment_path

    @property
    def trials(self) -> list[Trial]:
        return [outcome.trial for outcome in self._outcomes.values()]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last row of every trial, by trial id."""
        return {trial_id: outcome.metrics for trial_id, outcome in self._outcomes.items()}

    @property
    def results_df(self) -> pandas.DataFrame:
        """The last rows as a table with the trial ids as index."""
        return self._grid.get_dataframe().set_index("trial_id") if self._outcomes else self._grid.get_dataframe()

    @property
    def trial_dataframes(self) -> dict[str, pandas.DataFrame]:
        """All rows of every trial, by the trial's directory."""
        return {str(outcome.path): outcome.result.metrics_dataframe for outcome in self._outcomes.values()}

    @property
    def best_trial(self) -> Trial:
        """The trial with the best last value among those that did not fail; TuneError if none has one."""
        return self._best().trial

    @property
    def best_config(self) -> dict[str, Any]:
        return self.best_trial.config

    @property
    def best_logdir(self) -> str:
        return str(self._best().path)

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """Of the best trial, the kept checkpoint with the best value."""
        return self.get_best_checkpoint(self.best_trial)

    @property
    def best_result(self) -> dict[str, Any]:
        """The last row of the best trial."""
        return self._best().metrics

    @property
    def best_result_df(self) -> pandas.DataFrame:
        """The same as a table of one row."""
        return self.results_df.loc[[self.best_trial.trial_id]].dropna(axis="columns", how="all")

    @property
    def best_dataframe(self) -> pandas.DataFrame:
        """All rows of the best trial."""
        return self._best().result.metrics_dataframe

    def dataframe(self, metric: str | None = None, mode: Mode | None = None) -> pandas.DataFrame:
        """One row per trial: its last, or with `metric` the one in which that metric was best."""
        return self._grid.get_dataframe(
            filter_metric=metric, filter_mode=mode or (self.default_mode if metric else None)
        )

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: Mode | None = None,
        scope: Scope = "last",
        filter_nan_and_inf: bool = True,
        *,
        include_failed: bool = False,
    ) -> Trial | None:
        """The best trial, as ResultGrid.get_best_result() chooses it; None, with a warning, if no trial qualifies."""
        try:
            return self._best(
                metric, mode, scope=scope, filter_nan_and_inf=filter_nan_and_inf, include_failed=include_failed
            ).trial
        except TuneError as error:
            warn_at_users_line(f"There is no best trial. {error}")
            return None

    def get_best_config(
        self, metric: str | None = None, mode: Mode | None = None, scope: Scope = "last"
    ) -> dict[str, Any] | None:
        trial = self.get_best_trial(metric, mode, scope)
        return trial.config if trial else None

    def get_best_logdir(self, metric: str | None = None, mode: Mode | None = None, scope: Scope = "last") -> str | None:
        trial = self.get_best_trial(metric, mode, scope)
        return str(self._outcome(trial).path) if trial else None

    def get_best_checkpoint(
        self, trial: Trial | str, metric: str | None = None, mode: Mode | None = None
    ) -> Checkpoint | None:
        """The kept checkpoint of a trial with the best value; without any metric, the newest. None if none was kept.

        A trial may also be given by its id or its directory.
        """
        result = self._outcome(trial).result
        metric, mode = metric or self.default_metric, mode or self.default_mode
        if metric is None:
            return result.checkpoint
        if mode is None:
            raise ConfigError(f"mode is not given: pass 'min' or 'max' for {metric!r}.")
        return result.get_best_checkpoint(metric, mode)

    def get_last_checkpoint(
        self, trial: Trial | str | None = None, metric: str = TRAINING_ITERATION, mode: Mode = "max"
    ) -> Checkpoint | None:
        """The newest checkpoint of a trial; if none is given, of the one that got furthest, even if it failed then."""
        chosen = self.get_best_trial(metric, mode, include_failed=True) if trial is None else trial
        return self._outcome(chosen).result.checkpoint if chosen is not None else None

    def get_trial_checkpoints_paths(
        self, trial: Trial | str, metric: str | None = None
    ) -> list[tuple[str | None, float | None]]:
        """The kept checkpoints of a trial, from worst to best: where each is, and its value of the metric."""
        name = metric or self.default_metric or TRAINING_ITERATION
        kept = self._outcome(trial).result.best_checkpoints
        return [(checkpoint.path, number_at(row, name)) for checkpoint, row in kept]

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """The configuration of every trial, by the trial's directory; with `prefix` as {"config/a/b": value}."""
        return {
            str(outcome.path): flattened({"config": outcome.trial.config}) if prefix else outcome.trial.config
            for outcome in self._outcomes.values()
        }

    def stats(self) -> dict[str, float]:
        """How much was done: trials by how they ended, iterations, and seconds of training over all trials."""
        rows = [outcome.metrics for outcome in self._outcomes.values()]
        return {
            "num_trials": len(self._grid),
            "num_terminated": self._grid.num_terminated,
            "num_errors": self._grid.num_errors,
            "iterations_total": sum(int(number_at(row, TRAINING_ITERATION) or 0) for row in rows),
            "time_total_s": sum(number_at(row, "time_total_s") or 0.0 for row in rows),
        }

    def __repr__(self) -> str:
        return repr(self._grid).replace("ResultGrid", "ExperimentAnalysis", 1)

    def _best(self, metric: str | None = None, mode: Mode | None = None, **which: Any) -> TrialOutcome:
        return self._grid.best_outcome(metric or self.default_metric, mode or self.default_mode, **which)

    def _outcome(self, trial: Trial | str) -> TrialOutcome:
        """The outcome of a trial, of a trial id, or of a trial's directory."""
        wanted = trial.trial_id if isinstance(trial, Trial) else trial
        if wanted in self._outcomes:
            return self._outcomes[wanted]
        for outcome in self._outcomes.values():
            if str(outcome.path) == wanted.rstrip("/"):
                return outcome
        raise ConfigError(f"The experiment has no trial {wanted!r}{near_miss(wanted, list(self._outcomes)[:20])}")


def _read_grid(path: str) -> ResultGrid:
    from paceline.tune.experiment.grid import grid_of, load_grid

    journal = Path(path).expanduser()
    return grid_of(journal.parent, journal) if journal.is_file() else load_grid(path)


advise(__name__, {})
