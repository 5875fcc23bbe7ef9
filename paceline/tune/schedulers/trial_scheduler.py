"""What a scheduler is: it sees the rows of all trials and says which continue, wait, stop or start anew.

A scheduler is a state machine without clocks, files or randomness of its own: the same
constructor arguments, seed and sequence of calls lead to the same decisions. Restoring an
experiment relies on that: it makes the recorded calls again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from paceline.air.absent import advise
from paceline.air.checks import check_choice, warn_at_users_line
from paceline.air.errors import ConfigError
from paceline.air.metrics import nested_get
from paceline.run.spec import Trial

Row = Mapping[str, Any]
Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Restart:
    """The decision that a trial's workers end after this row and start anew, changed."""

    config: dict[str, Any] | None = None
    """The whole new configuration; None keeps the trial's own."""
    donor: Trial | None = None
    """The trial whose newest checkpoint is resumed from; None means the trial's own newest."""
    resources: dict[str, float] | None = None
    """What the trial holds from now on, such as ``{"CPU": 2.0}``; None keeps what it has."""


Decision = str | Restart
"""One of TrialScheduler's constants, or a Restart."""


class Controller(Protocol):
    """What a scheduler may ask of the running experiment, and have done to trials that do not run.

    `stop_trial` and `restart_trial` act when the hook that calls them has returned, so that nothing calls back into a
    scheduler that is still deciding. `waiting_trials` leaves out at once what is to be stopped.
    """

    @property
    def metric(self) -> str | None: ...

    @property
    def mode(self) -> str | None: ...

    @property
    def experiment_path(self) -> str: ...

    @property
    def expects_more_trials(self) -> bool:
        """True if the search may still create trials."""

    @property
    def replaying(self) -> bool:
        """True while a restore repeats earlier calls: what they wrote to files is there already."""

    @property
    def total_resources(self) -> dict[str, float]: ...

    @property
    def free_resources(self) -> dict[str, float]: ...

    def get_trials(self) -> list[Trial]:
        """All trials, in the order of their creation. There may be many: not for every row."""

    def waiting_trials(self) -> list[Trial]:
        """The trials that are PENDING or PAUSED."""

    def has_resources_for(self, trial: Trial) -> bool: ...

    def stop_trial(self, trial: Trial) -> None:
        """End a PENDING or PAUSED trial well."""

    def restart_trial(self, trial: Trial, restart: Restart) -> None:
        """Have a PAUSED trial start anew, changed, when it is chosen to run."""


class TrialScheduler:
    """Base of all schedulers. A scheduler of your own overrides `on_trial_result`, and what else it needs.

    The experiment calls `set_search_properties` and `set_seed` once, then `on_trial_add`
    for each trial as it is created and `on_trial_result` for each of its rows, in order.
    Each trial reaches at most one of `on_trial_complete`, `on_trial_error` and
    `on_trial_remove`. A trial takes no further step after the decision STOP; one that is
    paused keeps its place until `choose_trial_to_run` names it.
    """

    CONTINUE = "CONTINUE"
    PAUSE = "PAUSE"
    STOP = "STOP"
    NOOP = "NOOP"

    needs_metric = False
    """True if it cannot decide without a metric and a mode."""

    made_with: tuple[tuple[Any, ...], dict[str, Any]]
    """The arguments it was made with, so that a restore can make it again."""

    _metric: str | None
    _mode: str | None
    _warned_of: set[str]

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        made = super().__new__(cls)
        made.made_with = args, keywords
        # A class of the user's own need not call __init__ of this one.
        made._metric = made._mode = None
        made._warned_of = set()
        return made

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        if mode is not None:
            check_choice(mode, "mode", ("min", "max"))
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> str | None:
        return self._metric

    @property
    def mode(self) -> str | None:
        return self._mode

    @property
    def decides(self) -> bool:
        """False if every decision is CONTINUE: then rows need no answer, and workers run ahead."""
        return True

    @property
    def result_keys(self) -> tuple[str, ...] | None:
        """The keys of a row that decisions depend on; None if all may matter. Only these are kept for a restore."""
        return None

    @property
    def changed_parameters(self) -> Mapping[str, Any]:
        """The parameters that it changes while trials run, nested as in a configuration."""
        return {}

    def checkpoint_every(self) -> int | None:
        """How many iterations apart a class trainable should checkpoint if the user did not say; None: as it likes."""
        return None

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take over what TuneConfig says; False if that contradicts what this scheduler was made with."""
        if _contradict(self._metric, metric) or _contradict(self._mode, mode):
            return False
        self._metric = self._metric or metric
        self._mode = self._mode or mode
        if self.needs_metric and (self._metric is None or self._mode is None):
            missing = "metric" if self._metric is None else "mode"
            raise ConfigError(
                f"{type(self).__name__} compares trials by a metric, but no {missing} is set. Write "
                "TuneConfig(metric='the name you report', mode='min') or mode='max'."
            )
        return True

    def set_seed(self, seed: int) -> None:
        """Seed every random draw; called once, before the first trial, and again with the same number by a restore."""

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        """A trial was created; it has not started."""

    def on_trial_result(self, controller: Controller, trial: Trial, result: Row) -> Decision:
        """A running trial reported a row; `trial.last_result` is still the row before it."""
        raise NotImplementedError(f"{type(self).__name__} must define on_trial_result(controller, trial, result).")

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Row) -> None:
        """A trial ended well: its function returned, a stop criterion held, or it was stopped, running or paused."""
        self._left(controller, trial)

    def on_trial_error(self, controller: Controller, trial: Trial) -> None:
        """A trial failed for good."""
        self._left(controller, trial)

    def on_trial_remove(self, controller: Controller, trial: Trial) -> None:
        """A trial ended well without a row, or a restore continues without it."""
        self._left(controller, trial)

    def _left(self, controller: Controller, trial: Trial) -> None:
        """A trial is over, in whichever way."""

    def on_stall(self, controller: Controller) -> None:
        """Nothing runs and nothing can start: the last chance to let paused trials continue, or to stop them."""

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        """A waiting trial that may start now, or None; then the search is asked for a new one.

        This is a question and must not change the scheduler: a restore does not ask it again.
        """
        return first_that_fits(controller, controller.waiting_trials())

    def debug_string(self) -> str:
        """One line for the progress display."""
        return type(self).__name__

    def score_of(self, result: Row) -> float | None:
        """The row's metric, turned so that greater is better; NaN is the worst. None if it was not reported."""
        value = number_of(result, self._metric or "")
        if value is None:
            if isinstance(text := nested_get(result, self._metric or ""), str):
                self._warn_once(
                    "text",
                    f"{type(self).__name__} compares trials by {self._metric!r}, which is text: {text!r}. Such rows "
                    "cannot be compared: report float(value).",
                )
            return None
        if math.isnan(value):
            return -math.inf
        return -value if self._mode == "min" else value

    def time_of(self, result: Row, time_attr: str) -> float | None:
        """How far the trial is by the row's `time_attr`; None, with a warning, if it was not reported."""
        value = number_of(result, time_attr)
        if value is None or math.isnan(value):
            self._warn_once(
                time_attr,
                f"{type(self).__name__}(time_attr={time_attr!r}): a row without a number under {time_attr!r} was "
                "reported. Such rows are left out of the comparison.",
            )
            return None
        return value

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned_of:
            self._warned_of.add(about)
            warn_at_users_line(message)


def number_of(result: Row, key: str) -> float | None:
    """The row's number under `key`, where ``a/b`` reaches into nested dictionaries; None if there is none."""
    value = nested_get(result, key)
    return float(value) if isinstance(value, (int, float)) else None


def first_that_fits(controller: Controller, trials: list[Trial]) -> Trial | None:
    """The first of `trials` that the free resources allow."""
    return next((trial for trial in trials if controller.has_resources_for(trial)), None)


def _contradict(own: str | None, given: str | None) -> bool:
    return own is not None and given is not None and own != given


class FIFOScheduler(TrialScheduler):
    """Runs trials in the order of their creation, each to its end."""

    def __init__(self) -> None:
        super().__init__()

    @property
    def decides(self) -> bool:
        # A subclass that looks at rows wants to be heard.
        return type(self).on_trial_result is not FIFOScheduler.on_trial_result

    @property
    def result_keys(self) -> tuple[str, ...] | None:
        return None if self.decides else ()

    def on_trial_result(self, controller: Controller, trial: Trial, result: Row) -> Decision:
        return self.CONTINUE


advise(__name__, {})
