"""TuneConfig: how a search goes about its work."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air.checks import (
    ShortRepr,
    check_bool,
    check_choice,
    names_what_was_meant,
    warn_at_users_line,
    whole_number,
)
from paceline.air.errors import ConfigError
from paceline.tune.error import raises_tune_errors

if TYPE_CHECKING:
    from paceline.tune.schedulers.trial_scheduler import TrialScheduler
    from paceline.tune.search.searcher import Searcher


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
