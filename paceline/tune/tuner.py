"""Tuner and TuneConfig: run a trainable many times, each time with another configuration, and keep the best."""

from __future__ import annotations

import datetime
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from paceline.air.absent import advise
from paceline.air.checks import (
    ShortRepr,
    check_bool,
    check_choice,
    check_kind,
    names_what_was_meant,
    settings_of,
    warn_at_users_line,
    whole_number,
)
from paceline.air.config import RunConfig
from paceline.air.errors import ConfigError, TrainingFailedError, TuneConfigError, TuneError
from paceline.tune.result_grid import ResultGrid
from paceline.tune.search.variants import find
from paceline.tune.trainable.kinds import kind_of

if TYPE_CHECKING:
    from paceline.tune.experiment.restoring import Restoration
    from paceline.tune.schedulers.trial_scheduler import TrialScheduler
    from paceline.tune.search.searcher import Searcher

__all__ = ["ResultGrid", "TuneConfig", "Tuner"]

P = ParamSpec("P")
T = TypeVar("T")


def raises_tune_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Lets a ConfigError out of `function` as a TuneError as well: most come from layers that do not know of Tune."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ConfigError as error:
            if type(error) is not ConfigError:
                raise
            raised = TuneConfigError(*error.args).with_traceback(error.__traceback__)
            for note in getattr(error, "__notes__", ()):
                raised.add_note(note)
            raise raised from error.__cause__

    return wrapped


@names_what_was_meant()
@dataclass(repr=False)
class TuneConfig(ShortRepr):
    """What to search for, how, and how much of it."""

    mode: str | list[str] | None = None
    """ "min" or "max"; a list for several metrics."""
    metric: str | list[str] | None = None
    """The reported metric that trials are compared by; nested ones as "a/b"."""
    search_alg: Searcher | str | None = None
    """Proposes configurations; None: grids and random samples of param_space."""
    scheduler: TrialScheduler | str | None = None
    """Stops, pauses and changes trials; None: every trial runs to its end."""
    num_samples: int = 1
    """How often the space is sampled; a grid is run through each time. -1: without end."""
    max_concurrent_trials: int | None = None
    """At most so many trials at a time; None: as many as the resources allow."""
    time_budget_s: float | datetime.timedelta | None = None
    """Stop everything after so many seconds."""
    reuse_actors: bool | None = None
    """Accepted for old code, and not used: each trial is a fork that starts clean."""
    trial_name_creator: Callable[[Any], str] | None = None
    """Names a trial, from the trial."""
    trial_dirname_creator: Callable[[Any], str] | None = None
    """Names a trial's directory, from the trial."""
    chdir_to_trial_dir: bool = True
    """Workers start in a directory of their own; False: in the directory of the driver."""

    @property
    def budget_s(self) -> float | None:
        """`time_budget_s` in seconds, however it was given."""
        budget = self.time_budget_s
        return budget.total_seconds() if isinstance(budget, datetime.timedelta) else budget

    @raises_tune_errors
    def __post_init__(self) -> None:
        self._check_goal()
        self._check_amounts()
        for name in ("trial_name_creator", "trial_dirname_creator"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"{name} must be a function of the trial that returns a text.")
        check_bool(self.chdir_to_trial_dir, "chdir_to_trial_dir")
        if isinstance(self.search_alg, str) or isinstance(self.scheduler, str):
            from paceline.tune.by_name import check_names

            check_names(self.search_alg, self.scheduler)
        if self.reuse_actors:
            self.reuse_actors = None  # copies of this config do not warn again
            warn_at_users_line(
                "reuse_actors=True is ignored, and not needed: each trial is a fork of a process that has loaded the "
                "libraries. That takes milliseconds, and starts clean."
            )

    def _check_goal(self) -> None:
        """One metric and one mode, or as many modes as metrics."""
        for mode in self.mode if isinstance(self.mode, list | tuple) else [self.mode]:
            if mode is not None:
                check_choice(mode, "mode", ("min", "max"))
        metrics = self.metric if isinstance(self.metric, list | tuple) else [self.metric]
        for metric in metrics:
            if metric is not None and not isinstance(metric, str):
                raise ConfigError(f"metric must be the name of a reported metric, not {metric!r}.")
        if isinstance(self.metric, list | tuple):
            if isinstance(self.mode, str):  # the same for all of them
                self.mode = [self.mode] * len(metrics)
            if len(metrics) != len(self.mode or []):
                raise ConfigError(
                    f"metric={self.metric!r} needs as many modes, such as mode={['min'] * len(metrics)!r}."
                )
        elif isinstance(self.mode, list | tuple):
            raise ConfigError(f"mode={self.mode!r} is for a list of metrics, and metric is {self.metric!r}.")

    def _check_amounts(self) -> None:
        if self.num_samples != -1:
            self.num_samples = whole_number(self.num_samples, "num_samples", least=1, advice="-1 means without end.")
        if self.max_concurrent_trials in (0, -1):
            self.max_concurrent_trials = None
        if self.max_concurrent_trials is not None:
            self.max_concurrent_trials = whole_number(self.max_concurrent_trials, "max_concurrent_trials", least=1)
        self.time_budget_s = budget = self.budget_s
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int | float) or budget <= 0):
            raise ConfigError(f"time_budget_s must be a number of seconds above zero, not {budget!r}.")


_SETTINGS_ELSEWHERE = {
    **settings_of(RunConfig, "run_config=RunConfig({}=...)"),
    **settings_of(TuneConfig, "tune_config=TuneConfig({}=...)"),
}


class Tuner:
    """Searches `param_space` for the configuration with which `trainable` does best.

    trainable: a function of a config, a Trainable class, or a trainer, whose arguments are then what is searched.
    param_space: a nested dict of values and of what to search over, such as ``{"lr": tune.loguniform(1e-4, 1e-1)}``.
    tune_config: how to search, and how much.
    run_config: where results go and when to stop; that of a trainer is used if none is given.
    """

    @raises_tune_errors
    @names_what_was_meant(config="did you mean param_space?", **_SETTINGS_ELSEWHERE)
    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        if trainable is None:
            raise ConfigError("Tuner needs something to run: a function of a config, a Trainable class or a trainer.")
        check_kind(tune_config, TuneConfig, "tune_config")
        check_kind(run_config, RunConfig, "run_config")
        if param_space is not None and not isinstance(param_space, Mapping):
            raise ConfigError(f"param_space must be a dict, not {type(param_space).__name__}: {param_space!r}.")
        self._kind = kind_of(trainable)
        self._param_space = param_space or {}
        self._tune_config = tune_config or TuneConfig()
        self._run_config = run_config or self._kind.run_config or RunConfig()
        if self._run_config.debug is not None:
            raise ConfigError(
                f"RunConfig(debug={self._run_config.debug!r}) is not supported in a search: its trials run at the same "
                "time. To debug one, call trainer.fit() with its configuration."
            )
        find(self._param_space)  # refuses what cannot be searched
        self._kind.check_space(self._param_space)
        self._kind.check_run_config(self._run_config)
        self._kind.warm(self._run_config)
        self._restoration: Restoration | None = None
        self._results: ResultGrid | None = None

    @raises_tune_errors
    def fit(self) -> ResultGrid:
        """Run all trials. A trial that fails is an error in the grid, not here; a callback that fails is a TuneError.

        After Ctrl-C a KeyboardInterrupt is raised whose `.result` is the grid of what was reached; `Tuner.restore`
        continues from there.
        """
        from paceline.run.drive import step_to_end

        if self._restoration is not None:
            self._kind.check_continued()
        experiment = self._restoration.experiment() if self._restoration is not None else self._new_experiment()
        try:
            step_to_end(experiment)
        except TrainingFailedError as error:
            if error is not experiment.shared.audience.user_error:  # a trial's, which fail_fast="raise" asked for
                raise
            raise _with_result(TuneError(str(error)), experiment.result) from error.__cause__
        assert experiment.result is not None
        self._results = experiment.result
        return self._results

    def _new_experiment(self) -> Any:
        from paceline.engine.choose import choose_engine
        from paceline.tune.experiment.experiment import Experiment
        from paceline.tune.experiment.files import new_place
        from paceline.tune.experiment.setup import facts_of, make_setup, mark_as_used

        setup = make_setup(self._kind, self._param_space, self._tune_config, self._run_config)
        engine = choose_engine(self._run_config.engine)
        place = new_place(self._run_config, self._kind.name, engine.capabilities)
        experiment = Experiment(setup, engine, place)
        experiment.shared.files.journal.started(facts_of(setup, place))
        mark_as_used(setup)
        return experiment

    def get_results(self) -> ResultGrid:
        """What the last `fit()` reached; of a restored Tuner, what the experiment had reached before."""
        if self._results is None:
            if self._restoration is None:
                raise RuntimeError("There are no results yet: call fit() first.")
            self._results = self._restoration.results()
        return self._results

    # -- continuing an earlier experiment -------------------------------------------------

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """True if `path` holds an experiment that `restore` can continue."""
        from paceline.tune.experiment.restoring import has_experiment

        return has_experiment(path, storage_filesystem)

    @classmethod
    @raises_tune_errors
    @names_what_was_meant(config="did you mean param_space?")
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: Any = None,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        *,
        num_samples: int | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        storage_filesystem: Any = None,
    ) -> Tuner:
        """A Tuner that continues the experiment at `path`: no finished trial is run again, none is lost.

        Code is never read from disk: pass the trainable again, and the callbacks and the objects of classes of your
        own in run_config and tune_config. Everything plain is taken over, the searcher and the scheduler with what
        they have learned. `num_samples` may be raised; it counts from the beginning of the experiment.
        """
        from paceline.tune.experiment.restoring import Restoration
        from paceline.tune.experiment.settling import ResumeRules

        if trainable is None:
            raise ConfigError("Tuner.restore() needs the trainable again, because code is never read from disk.")
        rules = ResumeRules(resume_unfinished, resume_errored, restart_errored)
        kind = kind_of(trainable)
        restoration = Restoration.of(
            path, kind, rules, param_space, num_samples, tune_config, run_config, storage_filesystem
        )
        tuner = cls(trainable, run_config=restoration.run_config)
        tuner._restoration = restoration
        return tuner


def _with_result(error: TuneError, grid: ResultGrid | None) -> TuneError:
    error.result = grid  # type: ignore[attr-defined]
    return error


advise(__name__, {})  # misspelled names
