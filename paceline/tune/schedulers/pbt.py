"""Population-based training: bad trials continue from the weights of good ones, with parameters near theirs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.air.absent import advise
from paceline.air.checks import check_bool, is_number
from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import ConfigError
from paceline.air.metrics import flattened, nested_get
from paceline.air.words import counted
from paceline.run.spec import Trial
from paceline.tune.schedulers.pbt_explore import Mutations, check_mutations, copied, explored, filled
from paceline.tune.schedulers.pbt_replay import PopulationBasedTrainingReplay, Takeover, plain, write_takeover
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Restart, Row, TrialScheduler, number_of

__all__ = ["PopulationBasedTraining", "PopulationBasedTrainingReplay"]

ExploreFunction = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class PopulationMember:
    """A trial of the population that has not ended."""

    time: float = 0.0
    """When its turn was last."""
    score: float | None = None
    """What it had reached then. A takeover leaves it: until the next turn its checkpoint may be the old one."""
    iteration: int = 0
    lineage: list[Takeover] = field(default_factory=list)
    """The takeovers that led to its weights."""
    decided: list[Takeover] = field(default_factory=list)
    """The same after a takeover that was decided, until the trial's next row shows that it took place."""


class PopulationBasedTraining(TrialScheduler):
    """Trains a population whose worst members take over from its best ones, again and again.

    Every `perturbation_interval` of `time_attr` it is a trial's turn: if it belongs to
    the worst `quantile_fraction`, it continues from the newest checkpoint of one of the
    best, with that one's configuration, changed: each parameter of `hyperparam_mutations`
    is drawn anew with `resample_probability`, else a number is multiplied by one of
    `perturbation_factors` (within the bounds of its domain), and a value of a list is
    replaced by a neighbour. `custom_explore_fn(config)` may change it further. Trials must
    report checkpoints. A trial's own count of iterations continues.

    If there are more trials than fit at once, they take turns of that length. With `synch`
    all of them are compared at the same time, when the last one has had its turn.
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mutations | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: ExploreFunction | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
    ) -> None:
        super().__init__(metric, mode)
        if hyperparam_mutations is None and custom_explore_fn is None:
            raise ConfigError(
                "PopulationBasedTraining changes parameters, but was not told which: give hyperparam_mutations="
                "{'lr': tune.loguniform(1e-4, 1e-1)}, or a custom_explore_fn."
            )
        if hyperparam_mutations is not None:
            check_mutations(hyperparam_mutations)
        if custom_explore_fn is not None and not callable(custom_explore_fn):
            raise ConfigError(f"custom_explore_fn is {custom_explore_fn!r}: give a function config -> config.")
        if not is_number(perturbation_interval) or perturbation_interval <= 0:
            raise ConfigError(f"perturbation_interval is {perturbation_interval!r}: give a number above 0.")
        if not is_number(burn_in_period) or burn_in_period < 0:
            raise ConfigError(f"burn_in_period is {burn_in_period!r}: give a number that is not negative.")
        if not is_number(quantile_fraction) or not 0 <= quantile_fraction <= 0.5:
            raise ConfigError(f"quantile_fraction is {quantile_fraction!r}: give a number from 0 to 0.5.")
        if not is_number(resample_probability) or not 0 <= resample_probability <= 1:
            raise ConfigError(f"resample_probability is {resample_probability!r}: give a number from 0 to 1.")
        factors = tuple(perturbation_factors)
        if not factors or not all(is_number(factor) and factor > 0 for factor in factors):
            raise ConfigError(f"perturbation_factors is {perturbation_factors!r}: give numbers above 0.")
        for name, value in (("log_config", log_config), ("require_attrs", require_attrs), ("synch", synch)):
            check_bool(value, name)
        self._time_attr = time_attr
        self._interval = perturbation_interval
        self._burn_in = burn_in_period
        self._mutations = hyperparam_mutations or {}
        self._quantile = quantile_fraction
        self._resample = resample_probability
        self._factors = factors
        self._custom_explore = custom_explore_fn
        self._log_config = log_config
        self._require_attrs = require_attrs
        self._synch = synch
        self._seed = 0
        self._members: dict[Trial, PopulationMember] = {}
        self._held: dict[Trial, None] = {}
        """With synch: those who have had their turn and wait for the others."""
        self._added = 0
        self._takeovers = 0
        self._search_was_asked = False
        """Since the last turn. No decision depends on it, so that a restore may do without."""

    @property
    def result_keys(self) -> tuple[str, ...]:
        return (self._time_attr, self._metric or "", TRAINING_ITERATION)

    @property
    def changed_parameters(self) -> Mutations:
        return self._mutations

    def checkpoint_every(self) -> int:
        return max(1, int(self._interval)) if self._time_attr == TRAINING_ITERATION else 1

    def set_seed(self, seed: int) -> None:
        self._seed = seed

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        self._added += 1
        self._search_was_asked = False
        trial.config = filled(trial.config, self._mutations, self._generator("start", self._added))
        searched = {name: nested_get(trial.config, name) for name in flattened(self._mutations)}
        trial.evaluated_params = {**searched, **trial.evaluated_params}
        self._members[trial] = PopulationMember()

    def on_trial_result(self, controller: Controller, trial: Trial, result: Row) -> Decision:
        time, score = number_of(result, self._time_attr), self.score_of(result)
        if time is None or score is None:
            return self._without(self._time_attr if time is None else self._metric, trial)
        member = self._members[trial]
        self._confirm_takeover(controller, trial, member)
        member.iteration = int(number_of(result, TRAINING_ITERATION) or 0)
        if time < self._burn_in or time - member.time < self._interval:
            return self.CONTINUE
        self._take_turn(trial, member, time, score)
        self._search_was_asked = False
        if self._synch:
            self._held[trial] = None
            return self.PAUSE  # `on_stall` is when the last one has arrived
        lower, upper = self._quantiles()
        restart = self._takeover(controller, trial, upper) if trial in lower else None
        if restart is not None:
            return restart
        others_wait = any(other is not trial for other in controller.waiting_trials())
        return self.PAUSE if others_wait or controller.expects_more_trials else self.CONTINUE

    def on_stall(self, controller: Controller) -> None:
        """With synch: nobody is on the way any more, so that all are compared, and continue."""
        lower, upper = self._quantiles()
        for trial in lower:
            restart = self._takeover(controller, trial, upper) if trial in self._held else None
            if restart is not None:
                controller.restart_trial(trial, restart)
        self._held.clear()
        self._search_was_asked = True  # it had nothing, else this were no stall

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        """Who is behind goes first. A new trial goes before those who paused for it, if the search has one."""
        ready = [trial for trial in controller.waiting_trials() if trial not in self._held]
        ready.sort(key=lambda trial: self._members[trial].time)
        chosen = next((trial for trial in ready if controller.has_resources_for(trial)), None)
        if chosen is None or chosen.status != "PAUSED" or not controller.expects_more_trials or self._search_was_asked:
            return chosen
        self._search_was_asked = True  # that is what None leads to
        return None

    def debug_string(self) -> str:
        takeovers, alive = counted(self._takeovers, "takeover"), counted(len(self._members), "trial")
        return f"{type(self).__name__}: {takeovers}, {alive} alive"

    def _take_turn(self, trial: Trial, member: PopulationMember, time: float, score: float) -> None:
        member.time, member.score = time, score

    def _new_config(self, trial: Trial, donor: Trial, rng: random.Random) -> dict[str, Any]:
        """The donor's configuration, changed for `trial`."""
        return explored(donor.config, self._mutations, rng, resample_probability=self._resample, factors=self._factors)

    def _quantiles(self) -> tuple[list[Trial], list[Trial]]:
        """The worst and the best of those who have had a turn, never overlapping; each from worse to better."""
        scored = [(member.score, trial) for trial, member in self._members.items() if member.score is not None]
        scored.sort(key=lambda pair: pair[0])
        count = min(math.ceil(len(scored) * self._quantile), len(scored) // 2)
        ranking = [trial for _, trial in scored]
        return ranking[:count], ranking[len(ranking) - count :]

    def _takeover(self, controller: Controller, trial: Trial, upper: list[Trial]) -> Restart | None:
        self._takeovers += 1
        rng = self._generator("takeover", self._takeovers)
        donor = rng.choice(upper)
        if donor.checkpoint is None and not controller.replaying:
            self._warn_once(
                "checkpoint",
                f"{type(self).__name__}: {trial} should continue from the weights of {donor}, which has reported no "
                "checkpoint; it continues as it was. Report checkpoints: session.report(metrics, checkpoint=...), at "
                "least once per perturbation_interval.",
            )
            return None
        config = self._new_config(trial, donor, rng)
        if self._custom_explore is not None:
            config = self._custom_explore(copied(config))
            if not isinstance(config, dict):
                raise ConfigError(f"custom_explore_fn must return the configuration, a dict; it returned {config!r}.")
        member, giver = self._members[trial], self._members[donor]
        takeover = Takeover(
            trial.trial_id, donor.trial_id, member.iteration, giver.iteration, plain(donor.config), plain(config)
        )
        member.decided = [*giver.lineage, takeover]
        return Restart(config=config, donor=donor)

    def _confirm_takeover(self, controller: Controller, trial: Trial, member: PopulationMember) -> None:
        """Record a takeover once the trial continues with its new configuration: it may have been stopped instead."""
        decided, member.decided = member.decided, []
        if not decided or plain(trial.config) != decided[-1].new_config:
            return
        member.lineage = decided
        if self._log_config and not controller.replaying:
            write_takeover(controller.experiment_path, decided)

    def _left(self, controller: Controller, trial: Trial) -> None:
        self._search_was_asked = False
        self._members.pop(trial, None)
        self._held.pop(trial, None)

    def _without(self, key: str | None, trial: Trial) -> Decision:
        if self._require_attrs:
            raise ConfigError(
                f"{type(self).__name__} compares trials by {key!r}, and {trial} reported a row without a number for "
                f"it. Report it in every row, or allow such rows with {type(self).__name__}(require_attrs=False)."
            )
        self._warn_once(
            str(key), f"{type(self).__name__}: {trial} reported a row without a number for {key!r}, passed over."
        )
        return self.CONTINUE

    def _generator(self, purpose: str, number: int) -> random.Random:
        """A source of its own for each draw, so that what one draws does not depend on how often another drew."""
        return random.Random(f"{self._seed} {purpose} {number}")


advise(__name__, {})  # misspelled names
