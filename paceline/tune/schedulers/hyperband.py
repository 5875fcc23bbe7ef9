"""HyperBand: successive halving in brackets, where the trials of a bracket wait for each other."""

from __future__ import annotations

import math

from paceline.air.checks import check_bool, is_number
from paceline.air.errors import ConfigError
from paceline.run.spec import Trial
from paceline.tune.schedulers.async_hyperband import check_reduction_factor
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Row, TrialScheduler, first_that_fits


class HyperBandScheduler(TrialScheduler):
    """Trials fill brackets; in a bracket all train equally far, then the best ``1 / reduction_factor`` continue.

    With ``R = max_t`` and ``f = reduction_factor``, bracket s takes
    ``ceil((s_max + 1) / (s + 1) * f ** s)`` trials, and round i of it trains the best
    ``n / f ** i`` of them up to ``R / f ** (s - i)`` of `time_attr`. The brackets are filled
    one after the other from s_max to 0, and then from s_max again. With the defaults,
    the trials and how far they train, round by round, are::

        s = 4    81 to 1    27 to 3     9 to 9     3 to 27    1 to 81
        s = 3    34 to 3    11 to 9     3 to 27    1 to 81
        s = 2    15 to 9     5 to 27    1 to 81
        s = 1     8 to 27    2 to 81
        s = 0     5 to 81

    A trial that is done with its round pauses until the others of its bracket are. Trials
    that fail or end by themselves leave their bracket. If no trial is left to fill a
    bracket, it continues with those that it has, and its rounds shrink accordingly. NaN
    counts as the worst value; a row without the metric does not end a round. At `max_t`
    trials stop; with ``stop_last_trials=False`` they run to their own end.

    All waiting trials of a bracket hold their memory. AsyncHyperBandScheduler compares in
    the same way, but never waits.
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(metric, mode)
        if not is_number(max_t) or max_t < 1:
            raise ConfigError(f"max_t is {max_t!r}: give a number of at least 1, in units of {time_attr!r}.")
        check_reduction_factor(reduction_factor)
        check_bool(stop_last_trials, "stop_last_trials")
        self._time_attr = time_attr
        self._max_t = max_t
        self._factor = reduction_factor
        self._stop_last_trials = stop_last_trials
        self._s_max = 0
        while reduction_factor ** (self._s_max + 1) <= max_t:
            self._s_max += 1
        self._brackets_made = 0
        self._filling: _Bracket | None = None
        self._bracket_of: dict[str, _Bracket] = {}
        """Of every open trial."""
        self._num_stopped = 0

    @property
    def result_keys(self) -> tuple[str, ...] | None:
        return (self._metric or "", self._time_attr)

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        bracket = self._filling or self._new_bracket()
        bracket.add(trial)
        self._bracket_of[trial.trial_id] = bracket
        self._filling = bracket if bracket.takes_more else None

    def on_trial_result(self, controller: Controller, trial: Trial, result: Row) -> Decision:
        bracket = self._bracket_of.get(trial.trial_id)
        time = self.time_of(result, self._time_attr)
        if bracket is None or time is None:  # without a bracket: it may run on past max_t
            return self.CONTINUE
        if time >= self._max_t:
            self._left(controller, trial)
            return self.STOP if self._stop_last_trials else self.CONTINUE
        score = self.score_of(result)
        if score is None or time < bracket.milestone:
            return self.CONTINUE
        bracket.arrive(trial, score)
        if not bracket.round_is_over:
            return self.PAUSE
        beaten = self._next_round(bracket)
        self._stop_paused(controller, [other for other in beaten if other is not trial])
        return self.STOP if trial in beaten else self.CONTINUE

    def on_stall(self, controller: Controller) -> None:
        """Only a bracket that nobody fills can hold up everything: it continues with those it has."""
        if self._filling is not None:
            bracket, self._filling = self._filling, None
            bracket.close()
            self._go_on_if_over(controller, bracket)

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        # In the order of creation, so that old brackets end before new ones grow.
        return first_that_fits(controller, [each for each in controller.waiting_trials() if not self._waits(each)])

    def debug_string(self) -> str:
        brackets = dict.fromkeys(self._bracket_of.values())
        return f"HyperBandScheduler: {self._num_stopped} stopped; " + (
            " | ".join(map(str, brackets)) if brackets else "no open bracket"
        )

    def _new_bracket(self) -> _Bracket:
        s = self._s_max - self._brackets_made % (self._s_max + 1)
        self._brackets_made += 1
        size = math.ceil((self._s_max + 1) * self._factor**s / (s + 1))
        # In whole numbers, because iterations are; the last round ends at max_t itself.
        milestones = [math.floor(self._max_t / self._factor ** (s - i)) for i in range(s)]
        return _Bracket(size, [*milestones, self._max_t], self._factor)

    def _waits(self, trial: Trial) -> bool:
        bracket = self._bracket_of.get(trial.trial_id)
        return bracket is not None and bracket.has_arrived(trial)

    def _left(self, controller: Controller, trial: Trial) -> None:
        bracket = self._bracket_of.pop(trial.trial_id, None)
        if bracket is not None:
            bracket.remove(trial)
            self._go_on_if_over(controller, bracket)

    def _go_on_if_over(self, controller: Controller, bracket: _Bracket) -> None:
        """The next round of a bracket whose trials are all paused, if it waited only for what just happened."""
        if bracket.round_is_over:
            self._stop_paused(controller, self._next_round(bracket))

    def _next_round(self, bracket: _Bracket) -> list[Trial]:
        """Those who are beaten. They are forgotten at once, because their ends are reported to this object later."""
        beaten = bracket.next_round()
        for trial in beaten:
            del self._bracket_of[trial.trial_id]
        self._num_stopped += len(beaten)
        return beaten

    def _stop_paused(self, controller: Controller, trials: list[Trial]) -> None:
        for trial in trials:
            controller.stop_trial(trial)


class _Bracket:
    """The trials that are compared with each other, and the round they are in."""

    def __init__(self, size: int, milestones: list[float], factor: float) -> None:
        self._size = size
        self._milestones = milestones
        self._factor = factor
        self._round = 0
        self._entered = 0
        self._live: dict[Trial, float | None] = {}
        """In the order of their entry; with the score of this round, or None if on the way."""
        self._on_the_way = 0

    @property
    def takes_more(self) -> bool:
        return self._entered < self._size

    @property
    def milestone(self) -> float:
        """Where this round ends."""
        return self._milestones[self._round]

    @property
    def round_is_over(self) -> bool:
        return bool(self._live) and self._on_the_way == 0 and not self.takes_more

    def add(self, trial: Trial) -> None:
        self._live[trial] = None
        self._entered += 1
        self._on_the_way += 1

    def arrive(self, trial: Trial, score: float) -> None:
        if self._live[trial] is None:
            self._on_the_way -= 1
        self._live[trial] = score

    def has_arrived(self, trial: Trial) -> bool:
        return self._live[trial] is not None

    def remove(self, trial: Trial) -> None:
        if self._live.pop(trial) is None:
            self._on_the_way -= 1

    def close(self) -> None:
        """Take no more: from now on it is as large as what it has got."""
        self._size = self._entered

    def next_round(self) -> list[Trial]:
        """Start the next round with the best, and return the others. Of equals, the earlier one is the better."""
        self._round += 1
        best_first = sorted(self._live, key=lambda trial: -_known(self._live[trial]))
        kept = max(1, math.floor(self._size / self._factor**self._round))
        beaten = best_first[kept:]
        for trial in beaten:
            del self._live[trial]
        self._live = dict.fromkeys(self._live)
        self._on_the_way = len(self._live)
        return beaten

    def __str__(self) -> str:
        arrived = len(self._live) - self._on_the_way
        return f"{arrived} of {len(self._live)} at {self.milestone:g}, {self._entered} of {self._size} entered"


def _known(score: float | None) -> float:
    assert score is not None, "a round is over when every score is there"
    return score
