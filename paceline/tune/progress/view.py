"""What a display knows of an experiment.

`ExperimentView` is kept by the experiment and read by the display. It holds small ordered
structures, so that a drawing looks at the few trials it shows and never at all of them.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from paceline.air.cells import place_in_words
from paceline.air.errors import PacelineError
from paceline.air.metrics import nested_get

if TYPE_CHECKING:
    from paceline.air.result import Status
    from paceline.run.spec import Trial

_OUR_FILES = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
RECENTLY_ENDED = 50
"""How many ended trials a display may look back on."""
_MOST_POINTS = 400


@dataclass(eq=False)
class ExperimentView:
    """The state of an experiment as its display sees it."""

    name: str
    experiment_path: str
    trials: list[Trial] = field(default_factory=list)
    """All trials in order: the experiment's own list, not a copy."""
    metric: str | None = None
    mode: str | None = None
    total: int | None = None
    """How many trials there will be; None if nobody knows."""
    started_at: float = field(default_factory=time.monotonic)
    used: dict[str, float] = field(default_factory=dict)
    """Resources that running trials hold."""
    resources: dict[str, float] = field(default_factory=dict)
    """Resources that there are."""
    scheduler_info: Callable[[], str] = str
    """What the scheduler says of itself."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many trials have which status."""
    running: dict[Trial, None] = field(default_factory=dict)
    """In the order they started (a dict, because trials leave from the middle)."""
    paused: dict[Trial, None] = field(default_factory=dict)
    recently_ended: deque[Trial] = field(default_factory=partial(deque, maxlen=RECENTLY_ENDED))
    """Those that ended well, newest last."""
    errors: dict[Trial, str] = field(default_factory=dict)
    """The failed trials with the first line of what ended them."""
    _statuses: dict[Trial, str] = field(default_factory=dict, repr=False)
    _values: dict[Trial, float] = field(default_factory=dict, repr=False)
    _best: Trial | None = field(default=None, repr=False)
    _best_is_stale: bool = field(default=False, repr=False)

    def note_status(self, trial: Trial) -> None:
        """Say that a trial is new or that its status changed; saying it twice does no harm."""
        before, now = self._statuses.get(trial), trial.status
        if before == now:
            return
        self._statuses[trial] = now
        self.counts[now] = self.counts.get(now, 0) + 1
        if before is not None:
            self.counts[before] -= 1
        self.running.pop(trial, None)
        self.paused.pop(trial, None)
        if before == "ERROR":  # it gets another chance
            self.errors.pop(trial, None)
        if now == "RUNNING":
            self.running[trial] = None
        elif now == "PAUSED":
            self.paused[trial] = None
        elif now == "TERMINATED":
            self.recently_ended.append(trial)
        elif now == "ERROR":
            self.errors.setdefault(trial, "")
            self._forget_value(trial)  # as in ResultGrid.get_best_result()

    def note_error(self, trial: Trial, error: BaseException | str) -> None:
        """Say what ended a trial, before or after its status says that it failed."""
        self.errors[trial] = _first_line(error)

    def note_row(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Take a trial's newest row into account for the best trial. Called for every row."""
        if self.metric is None or trial.status == "ERROR":
            return
        value = row.get(self.metric)
        if value is None:
            value = nested_get(row, self.metric)
            if value is None:  # not in this row: the trial keeps the value it had
                return
        if not isinstance(value, float | int) or not isfinite(value):
            self._forget_value(trial)
            return
        if self.mode == "min":
            value = -value
        if trial is self._best:
            # Falling behind says nothing about who is best now; that is found out when somebody asks.
            self._best_is_stale = self._best_is_stale or value < self._values[trial]
        elif self._best is None or self._is_better(trial, value):
            self._best = trial
        self._values[trial] = value

    def _forget_value(self, trial: Trial) -> None:
        self._values.pop(trial, None)
        self._best_is_stale = self._best_is_stale or trial is self._best

    def best_trial(self) -> Trial | None:
        """The trial whose last value of the metric is best. NaN, infinite values and failed trials never are."""
        if self._best_is_stale:
            self._best_is_stale = False
            self._best = None
            for trial, value in self._values.items():
                if self._best is None or self._is_better(trial, value):
                    self._best = trial
        return self._best

    def best_value(self) -> float | None:
        """The best trial's value of the metric."""
        best = self.best_trial()
        if best is None:
            return None
        return -self._values[best] if self.mode == "min" else self._values[best]

    def _is_better(self, trial: Trial, value: float) -> bool:
        """Whether this value beats the best trial's; of equals, the earlier trial is best."""
        assert self._best is not None
        to_beat = self._values.get(self._best)
        if to_beat is None:
            return False  # the best trial's value was lost, so that a search for another is due
        return value > to_beat or (value == to_beat and trial.trial_id < self._best.trial_id)

    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_at


class BestSoFar:
    """The best value over time, in few points."""

    def __init__(self) -> None:
        self.values: list[float | None] = []
        self.seconds: list[float] = []

    def look(self, view: ExperimentView) -> None:
        self.values.append(view.best_value())
        self.seconds.append(round(view.elapsed_s(), 1))
        if len(self.values) > _MOST_POINTS:
            self.values, self.seconds = self.values[::2], self.seconds[::2]


@dataclass(frozen=True)
class ExperimentEnd:
    """How an experiment ended; the view knows the rest."""

    status: Status
    """ "finished" if nothing is left to do, whether or not trials failed."""
    restore_hint: str = ""
    """The code that continues an experiment which is not finished, or runs failed trials again."""


def _first_line(error: BaseException | str) -> str:
    """What happened, in one line, and where: of an error that several workers added to, its root cause."""
    cause = getattr(error, "root_cause", None)
    text = str(error) if cause is None else cause.message
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if cause is not None and (place := place_in_users_code(cause.traceback)):
        line = f"{line} ({place})"
    if isinstance(error, str | PacelineError):
        return line
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def place_in_users_code(traceback: str) -> str:
    """The innermost line of a traceback that is not the library's own: ``train.py:12`` or ``Cell In[3], line 7``."""
    frames = re.findall(r'^  File "([^"]+)", line (\d+)', traceback, re.MULTILINE)
    own = [(file, line) for file, line in frames if not file.startswith((_OUR_FILES, "<"))]
    return place_in_words(os.path.basename(own[-1][0]), own[-1][1]) if own else ""
