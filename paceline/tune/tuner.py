"""Tuner: runs a trainable many times, each time with another configuration, and keeps the best."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.absent import advise
from paceline.air.checks import check_kind, names_what_was_meant, settings_of
from paceline.air.config import RunConfig
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.tune.error import TuneError, raises_tune_errors
from paceline.tune.result_grid import ResultGrid
from paceline.tune.search.paths import find
from paceline.tune.trainable.kinds import kind_of
from paceline.tune.tune_config import TuneConfig

if TYPE_CHECKING:
    from paceline.tune.experiment.restoring import Restoration

__all__ = ["ResultGrid", "TuneConfig", "Tuner"]

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
            if error is not experiment.audience.user_error:  # a trial's, which fail_fast="raise" asked for
                raise
            raise _with_result(TuneError(str(error)), experiment.result) from error.__cause__
        assert experiment.result is not None
        self._results = experiment.result
        return self._results

    def _new_experiment(self) -> Any:
        from paceline.engine.choose import choose_engine
        from paceline.tune.experiment.experiment import Experiment
        from paceline.tune.experiment.place import new_place
        from paceline.tune.experiment.setup import facts_of, make_setup, mark_as_used

        setup = make_setup(self._kind, self._param_space, self._tune_config, self._run_config)
        engine = choose_engine(self._run_config.engine)
        place = new_place(self._run_config, self._kind.name, engine.capabilities)
        experiment = Experiment(setup, engine, place)
        experiment.files.journal.started(facts_of(setup, place))
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
