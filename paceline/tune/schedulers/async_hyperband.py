"""Asynchronous successive halving: a trial is compared at a few points of its way, and nobody waits for anybody."""

from __future__ import annotations

import math
import random
from bisect import insort

from paceline.air.absent import advise
from paceline.air.checks import check_bool, is_number, whole_number
from paceline.air.errors import ConfigError
from paceline.run.spec import Trial
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Row, TrialScheduler


class AsyncHyperBandScheduler(TrialScheduler):
    """ASHA. Stops a trial that falls behind those that came as far before it.

    The rungs lie at ``grace_period * reduction_factor ** k`` below `max_t`, counted in
    `time_attr`. A trial's value at a rung is that of its first row at or past it. It goes
    on if that value reaches the best ``1 / reduction_factor`` of the values that other
    trials have left there so far (the percentile, with linear interpolation); the first
    to arrive always goes on. A row without the metric is passed over, and NaN counts as
    the worst value.

    With `brackets` above 1 each trial is drawn into one of them. Bracket s leaves out the
    first s rungs, which is for metrics that say little early on; a bracket with more rungs
    is drawn more often (the weights are the softmax of the numbers of rungs).

    At `max_t` a trial stops; with ``stop_last_trials=False`` it runs to its own end.
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(metric, mode)
        if not is_number(grace_period) or grace_period <= 0:
            raise ConfigError(f"grace_period is {grace_period!r}: give a number above 0, in units of {time_attr!r}.")
        if not is_number(max_t) or max_t < grace_period:
            raise ConfigError(f"max_t is {max_t!r}: give a number that is not below grace_period={grace_period!r}.")
        check_reduction_factor(reduction_factor)
        whole_number(brackets, "brackets", least=1)
        check_bool(stop_last_trials, "stop_last_trials")
        self._time_attr = time_attr
        self._max_t = max_t
        self._stop_last_trials = stop_last_trials
        milestones = _milestones(grace_period, reduction_factor, max_t)
        self._brackets = [[_Rung(at, reduction_factor) for at in milestones[s:]] for s in range(brackets)]
        self._random = random.Random(0)
        self._ahead: dict[str, list[_Rung]] = {}
        """Of each open trial, the rungs it has still to come to, the next one last."""
        self._num_stopped = 0

    @property
    def result_keys(self) -> tuple[str, ...] | None:
        return (self._metric or "", self._time_attr)

    def set_seed(self, seed: int) -> None:
        self._random = random.Random(seed)

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        self._ahead[trial.trial_id] = list(reversed(self._drawn_bracket()))

    def on_trial_result(self, controller: Controller, trial: Trial, result: Row) -> Decision:
        time = self.time_of(result, self._time_attr)
        if time is None:
            return self.CONTINUE
        keeps_up = self._compare(trial, time, self.score_of(result))
        if keeps_up and not (time >= self._max_t and self._stop_last_trials):
            return self.CONTINUE
        self._num_stopped += 1
        return self.STOP

    def _left(self, controller: Controller, trial: Trial) -> None:
        self._ahead.pop(trial.trial_id, None)

    def debug_string(self) -> str:
        brackets = " | ".join(", ".join(map(self._described, rungs)) or "no rungs" for rungs in self._brackets)
        return f"AsyncHyperBandScheduler: {self._num_stopped} stopped; cutoffs by {self._time_attr}: {brackets}"

    def _described(self, rung: _Rung) -> str:
        cutoff = rung.cutoff()
        if cutoff is None:
            return f"{rung.milestone:g} none"
        return f"{rung.milestone:g} {-cutoff if self._mode == 'min' else cutoff:.4g}"

    def _drawn_bracket(self) -> list[_Rung]:
        if len(self._brackets) == 1:
            return self._brackets[0]
        most = len(self._brackets[0])
        weights = [math.exp(len(rungs) - most) for rungs in self._brackets]
        return self._random.choices(self._brackets, weights)[0]

    def _compare(self, trial: Trial, time: float, score: float | None) -> bool:
        """Leave the score at every rung that this row is the first to reach; False if it is too low for one."""
        keeps_up = True
        ahead = self._ahead[trial.trial_id]
        while score is not None and ahead and time >= ahead[-1].milestone:
            keeps_up &= ahead.pop().admits(score)
        return keeps_up


ASHAScheduler = AsyncHyperBandScheduler


class _Rung:
    """One point of comparison. The scores are kept in order, so that a percentile is a lookup."""

    def __init__(self, milestone: float, reduction_factor: float) -> None:
        self.milestone = milestone
        self._quantile = 1 - 1 / reduction_factor
        self._scores: list[float] = []

    def admits(self, score: float) -> bool:
        """Whether a newcomer reaches the cutoff of those before; its score is there from now on."""
        cutoff = self.cutoff()
        insort(self._scores, score)
        return cutoff is None or score >= cutoff

    def cutoff(self) -> float | None:
        """The percentile that separates the best 1/reduction_factor; None if nobody has been here."""
        if not self._scores:
            return None
        position = self._quantile * (len(self._scores) - 1)
        below = int(position)
        low, high = self._scores[below], self._scores[min(below + 1, len(self._scores) - 1)]
        share = position - below
        # Not low + share * (high - low): with infinite scores that is not a number.
        return low if share == 0 or low == high else low * (1 - share) + high * share


def check_reduction_factor(reduction_factor: float) -> None:
    if not is_number(reduction_factor) or reduction_factor <= 1:
        raise ConfigError(
            f"reduction_factor is {reduction_factor!r}: give a number above 1. With 4, a quarter of the trials "
            "continues."
        )


def _milestones(first: float, factor: float, max_t: float) -> list[float]:
    milestones: list[float] = []
    while first * factor ** len(milestones) < max_t:
        milestones.append(first * factor ** len(milestones))
    return milestones


advise(__name__, {})  # misspelled names
