"""The median stopping rule: a trial whose best value is below what the others had on average is not worth its time."""

from __future__ import annotations

import statistics
from array import array
from bisect import bisect_right

from paceline.air.checks import check_bool, is_number, whole_number
from paceline.air.errors import ConfigError
from paceline.run.spec import Trial
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Row, TrialScheduler, first_that_fits


class MedianStoppingRule(TrialScheduler):
    """Stops a trial if its best value so far is worse than the median of the other trials' averages up to this time.

    The averages are over the rows from `grace_period` on, which is counted in `time_attr`
    like every time here; no trial stops earlier than that. Only trials that have come as
    far, and had reported by then, count; there must be `min_samples_required` of them. NaN
    is the worst value; a row without the metric is passed over.

    While there are too few to compare with, a trial that has run for `min_time_slice`
    makes room for others that wait, and continues later. With ``min_time_slice=0``, it does
    so only for trials that exist; otherwise also for those the search has yet to create.

    With ``hard_stop=False`` a trial that would be stopped is paused instead. It runs to its
    end when there are no others left to start.
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        super().__init__(metric, mode)
        for name, value in (("grace_period", grace_period), ("min_time_slice", min_time_slice)):
            if not is_number(value) or value < 0:
                raise ConfigError(f"{name} is {value!r}: give a number of 0 or more, in units of {time_attr!r}.")
        whole_number(min_samples_required, "min_samples_required", least=1)
        check_bool(hard_stop, "hard_stop")
        self._time_attr = time_attr
        self._grace_period = grace_period
        self._min_samples = min_samples_required
        self._min_time_slice = min_time_slice
        self._hard_stop = hard_stop
        self._curves: dict[str, _Curve] = {}
        """Of every trial that reported, ended ones too: the others are measured by them."""
        self._open: dict[str, Trial] = {}
        self._yielded: dict[Trial, float] = {}
        """Trials that made room, the longest waiting first, and the time they had come to."""
        self._slice_began: dict[Trial, float] = {}
        self._postponed: dict[Trial, None] = {}
        """Trials below the median that wait for their turn at the end, or are having it."""
        self._stalled = False
        self._num_stopped = 0

    @property
    def result_keys(self) -> tuple[str, ...] | None:
        return (self._metric or "", self._time_attr)

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        self._open[trial.trial_id] = trial

    def on_trial_result(self, controller: Controller, trial: Trial, result: Row) -> Decision:
        self._resumed(trial)
        time, score = self.time_of(result, self._time_attr), self.score_of(result)
        if time is None or score is None:
            return self.CONTINUE
        curve = self._curves.setdefault(trial.trial_id, _Curve())
        curve.add(time, score, counts=time >= self._grace_period)
        if time < self._grace_period or trial in self._postponed:
            return self.CONTINUE
        averages = [
            other.average_until(time) for other in self._curves.values() if other is not curve and other.covers(time)
        ]
        if len(averages) < self._min_samples:
            return self._make_room(controller, trial, time)
        if curve.best >= statistics.median(averages):
            return self.CONTINUE
        self._num_stopped += 1
        if self._hard_stop:
            return self.STOP
        self._postponed[trial] = None
        return self.PAUSE

    def on_stall(self, controller: Controller) -> None:
        """The search waits for results of paused trials: they continue without waiting for new ones."""
        self._stalled = True

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        waiting = controller.waiting_trials()
        pending = first_that_fits(controller, [trial for trial in waiting if trial.status == "PENDING"])
        if pending is not None or (controller.expects_more_trials and not self._stalled):
            return pending
        paused = {trial for trial in waiting if trial.status == "PAUSED"}
        return first_that_fits(controller, [trial for trial in [*self._yielded, *self._postponed] if trial in paused])

    def debug_string(self) -> str:
        verb = "stopped" if self._hard_stop else "postponed"
        return f"MedianStoppingRule: {self._num_stopped} {verb}, {len(self._yielded)} made room"

    def _make_room(self, controller: Controller, trial: Trial, time: float) -> Decision:
        if time - self._slice_began.get(trial, 0.0) < self._min_time_slice or not self._others_wait(controller, trial):
            return self.CONTINUE
        self._yielded[trial] = time
        return self.PAUSE

    def _others_wait(self, controller: Controller, trial: Trial) -> bool:
        if self._min_time_slice > 0 and controller.expects_more_trials:
            return True
        # Postponed ones do not count: they have their turn when all others have had theirs.
        return any(
            other.status in ("PENDING", "PAUSED")
            for other in self._open.values()
            if other is not trial and other not in self._postponed
        )

    def _resumed(self, trial: Trial) -> None:
        """The trial runs: if it was one that made room, its new slice began where it had stopped."""
        self._stalled = False
        if trial in self._yielded:
            self._slice_began[trial] = self._yielded.pop(trial)

    def _left(self, controller: Controller, trial: Trial) -> None:
        self._open.pop(trial.trial_id, None)
        for record in (self._yielded, self._slice_began, self._postponed):
            record.pop(trial, None)


class _Curve:
    """One trial's way: its best score, and for every time the average of the scores that count up to then."""

    def __init__(self) -> None:
        self.best = float("-inf")
        self._times = array("d")
        self._sums = array("d")

    def add(self, time: float, score: float, *, counts: bool) -> None:
        self.best = max(self.best, score)
        if counts and not (self._times and time < self._times[-1]):  # a retry comes by earlier times again
            self._sums.append(score + (self._sums[-1] if self._sums else 0.0))
            self._times.append(time)

    def covers(self, time: float) -> bool:
        return bool(self._times) and self._times[0] <= time <= self._times[-1]

    def average_until(self, time: float) -> float:
        """Over the rows up to `time`, of which there must be one."""
        count = bisect_right(self._times, time)
        return self._sums[count - 1] / count
