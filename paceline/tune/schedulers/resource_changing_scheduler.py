"""Trials that get more of the machine as it becomes free.

A running process cannot be given more cores in a way that its libraries notice. So a
trial whose share changes is started anew with it, from its own newest checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from paceline.air.checks import check_bool, check_choice, warn_at_users_line, whole_number
from paceline.air.errors import ConfigError
from paceline.air.resources import PlacementGroupFactory, checked_resources
from paceline.run.spec import Trial
from paceline.tune.schedulers.trial_scheduler import (
    Controller,
    Decision,
    FIFOScheduler,
    Restart,
    Row,
    TrialScheduler,
    number_of,
)

Resources = dict[str, float]
AllocationFunction = Callable[
    [Controller, Trial, Row, "ResourceChangingScheduler"], Mapping[str, float] | PlacementGroupFactory | None
]


class DistributeResources:
    """Shares what is free equally among the trials that are left.

    A trial never has less than it was started with. Nothing is shared as long as the
    search may create trials, which need it themselves. Shares grow in steps: of
    `increase_by`, such as ``{"CPU": 2, "GPU": 1}``; without it, of one unit of each
    resource that the trial uses or, with `add_bundles`, of as much as it was started with,
    as for one more worker. `increase_by_times` limits the number of steps (-1: no limit),
    and `reserve_resources` is left alone.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
    ) -> None:
        check_bool(add_bundles, "add_bundles")
        self._add_bundles = add_bundles
        self._increase_by = checked_resources(increase_by or {}, "increase_by")
        self._most_times = whole_number(increase_by_times, "increase_by_times", least=-1)
        self._reserved = checked_resources(reserve_resources or {}, "reserve_resources")

    def __call__(
        self, controller: Controller, trial: Trial, result: Row, scheduler: ResourceChangingScheduler
    ) -> Resources | None:
        share = dict(scheduler.live_trials[trial])
        if controller.expects_more_trials:
            return share
        for step in self._steps_from(share):
            times = self._times_for(step, controller, trial, result, scheduler)
            for name, amount in step.items():
                share[name] = share.get(name, 0.0) + times * amount
        return share

    def _steps_from(self, base: Resources) -> list[Resources]:
        """By what a share grows; several steps grow apart from each other."""
        if self._increase_by:
            return [self._increase_by]
        return [base] if self._add_bundles else [{name: 1.0} for name in base]

    def _times_for(
        self,
        step: Resources,
        controller: Controller,
        trial: Trial,
        result: Row,
        scheduler: ResourceChangingScheduler,
    ) -> int:
        """How many of these steps the trial shall have now, beyond what it was started with."""
        live, base = scheduler.live_trials, scheduler.live_trials[trial]
        taken = _sum(live.values())
        total, free = controller.total_resources, controller.free_resources
        spare = {name: total.get(name, 0.0) - self._reserved.get(name, 0.0) - taken.get(name, 0.0) for name in step}
        wanted = self._part_of(_times(step, spare), trial, result, scheduler)
        if self._most_times >= 0:
            wanted = min(wanted, self._most_times)
        # What others hold beyond their share comes free when they report; until then there is only what is free.
        has = trial.resources
        room = {name: has.get(name, 0.0) + free.get(name, 0.0) - base.get(name, 0.0) for name in step}
        return min(wanted, _times(step, room))

    def _part_of(self, steps: int, trial: Trial, result: Row, scheduler: ResourceChangingScheduler) -> int:
        """The trial's part of all steps there are; the oldest trials have what does not divide."""
        each, left = divmod(steps, len(scheduler.live_trials))
        return each + (1 if list(scheduler.live_trials).index(trial) < left else 0)


class DistributeResourcesToTopJob(DistributeResources):
    """Gives what is free to the best trial of those that are left; the others keep what they were started with.

    The best is the one with the best newest value of `metric`; without it, of TuneConfig's.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        super().__init__(add_bundles, increase_by, increase_by_times, reserve_resources)
        if mode is not None:
            check_choice(mode, "mode", ("min", "max"))
        if (metric is None) != (mode is None):
            raise ConfigError(f"metric is {metric!r} and mode is {mode!r}: give both or neither.")
        self._metric = metric
        self._mode = mode

    def _part_of(self, steps: int, trial: Trial, result: Row, scheduler: ResourceChangingScheduler) -> int:
        metric, mode = self._metric or scheduler.metric, self._mode or scheduler.mode
        if metric is None or mode is None:
            raise ConfigError(
                "DistributeResourcesToTopJob needs to know which trial is the best: give it metric and mode, or "
                "TuneConfig(metric=..., mode=...)."
            )

        def score(each: Trial) -> float:
            value = number_of(result if each is trial else each.last_result, metric)
            if value is None or math.isnan(value):
                return -math.inf
            return -value if mode == "min" else value

        best = max(scheduler.live_trials, key=score)
        return steps if best is trial else 0


_EQUAL_SHARES = DistributeResources()


class ResourceChangingScheduler(TrialScheduler):
    """Changes what trials hold while another scheduler decides which of them continue.

    After each row of a trial that continues, `resources_allocation_function(controller,
    trial, result, scheduler)` says what the trial should hold: a dict such as
    ``{"CPU": 2}``, a PlacementGroupFactory, or None for no change; by default it is
    DistributeResources(). A change starts the trial anew from its newest checkpoint.
    Without a function, that is with None in its place, nothing is ever changed.
    """

    def __init__(
        self,
        base_scheduler: TrialScheduler | None = None,
        resources_allocation_function: AllocationFunction | None = _EQUAL_SHARES,
    ) -> None:
        super().__init__()
        if base_scheduler is not None and not isinstance(base_scheduler, TrialScheduler):
            raise ConfigError(f"base_scheduler is {base_scheduler!r}: give a scheduler, such as ASHAScheduler().")
        if resources_allocation_function is None:
            warn_at_users_line(
                "ResourceChangingScheduler(resources_allocation_function=None) leaves every trial with what it was "
                "started with. Leave the argument out for DistributeResources(), or use the base scheduler alone."
            )
        elif not callable(resources_allocation_function):
            raise ConfigError(
                f"resources_allocation_function is {resources_allocation_function!r}: give DistributeResources() or "
                "a function (controller, trial, result, scheduler) -> resources."
            )
        self._base = base_scheduler or FIFOScheduler()
        self.needs_metric = self._base.needs_metric
        self._allocate = resources_allocation_function
        self.live_trials: dict[Trial, Resources] = {}
        """The trials that have not ended, oldest first, and what each was started with."""

    @property
    def metric(self) -> str | None:
        return self._base.metric or self._metric

    @property
    def mode(self) -> str | None:
        return self._base.mode or self._mode

    @property
    def result_keys(self) -> tuple[str, ...] | None:
        return self._base.result_keys  # shares are recorded, not worked out again

    @property
    def changed_parameters(self) -> Mapping[str, Any]:
        return self._base.changed_parameters

    def checkpoint_every(self) -> int | None:
        return self._base.checkpoint_every() or (None if self._allocate is None else 1)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        super().set_search_properties(metric, mode, **spec)
        return self._base.set_search_properties(metric, mode, **spec)

    def set_seed(self, seed: int) -> None:
        self._base.set_seed(seed)

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        self.live_trials[trial] = dict(trial.resources)
        self._base.on_trial_add(controller, trial)

    def on_trial_result(self, controller: Controller, trial: Trial, result: Row) -> Decision:
        decision = self._base.on_trial_result(controller, trial, result)
        if decision != self.CONTINUE or controller.replaying:
            return decision
        resources = self._resources_for(controller, trial, result)
        if resources is None or resources == checked_resources(trial.resources, "trial.resources"):
            return decision
        if trial.checkpoint is None:
            self._warn_once(
                "checkpoint",
                f"ResourceChangingScheduler: {trial} could have {resources} instead of {trial.resources}, but has "
                "reported no checkpoint and would start from the beginning; it keeps what it has. Report "
                "checkpoints: session.report(metrics, checkpoint=...).",
            )
            return decision
        return Restart(resources=resources)

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Row) -> None:
        self.live_trials.pop(trial, None)
        self._base.on_trial_complete(controller, trial, result)

    def on_trial_error(self, controller: Controller, trial: Trial) -> None:
        self.live_trials.pop(trial, None)
        self._base.on_trial_error(controller, trial)

    def on_trial_remove(self, controller: Controller, trial: Trial) -> None:
        self.live_trials.pop(trial, None)
        self._base.on_trial_remove(controller, trial)

    def on_stall(self, controller: Controller) -> None:
        self._base.on_stall(controller)

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        return self._base.choose_trial_to_run(controller)

    def debug_string(self) -> str:
        return f"ResourceChangingScheduler: {self._base.debug_string()}"

    def _resources_for(self, controller: Controller, trial: Trial, result: Row) -> Resources | None:
        answer = None if self._allocate is None else self._allocate(controller, trial, result, self)
        if answer is None:
            return None
        if isinstance(answer, PlacementGroupFactory):
            return answer.required_resources
        return checked_resources(answer, "what resources_allocation_function returned")


def _sum(many: Any) -> Resources:
    total: Resources = {}
    for resources in many:
        for name, amount in resources.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _times(step: Resources, room: Resources) -> int:
    """How often `step` fits."""
    return max(0, min((math.floor(room[name] / amount + 1e-9) for name, amount in step.items()), default=0))
