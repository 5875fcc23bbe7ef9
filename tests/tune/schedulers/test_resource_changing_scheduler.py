"""What trials hold, shared anew as trials end."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import ConfigError
from paceline.air.resources import PlacementGroupFactory
from paceline.run.spec import Trial
from paceline.tune.schedulers import (
    ASHAScheduler,
    DistributeResources,
    DistributeResourcesToTopJob,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from paceline.tune.schedulers.trial_scheduler import Restart, TrialScheduler
from tests.tune.schedulers.population import Population, new_trial


class Machine(Population):
    """Running trials, each of which reports when told to; its restarts change what it holds."""

    def __init__(
        self,
        scheduler: TrialScheduler,
        count: int,
        total: dict[str, float],
        held: dict[str, float] | None = None,
        more: bool = False,
    ) -> None:
        super().__init__(scheduler, [])
        self.total, self.more = total, more
        for number in range(count):
            trial = new_trial(number, {"lr": 1.0})
            trial.status, trial.resources = "RUNNING", dict(held or {"CPU": 1.0})
            trial.checkpoint = Checkpoint.from_dict({})
            self.trials.append(trial)
            scheduler.on_trial_add(self, trial)

    @property
    def expects_more_trials(self) -> bool:
        return self.more

    @property
    def total_resources(self) -> dict[str, float]:
        return self.total

    @property
    def free_resources(self) -> dict[str, float]:
        running = self._with_status("RUNNING")
        return {k: v - sum(trial.resources.get(k, 0.0) for trial in running) for k, v in self.total.items()}

    def report(self, number: int, score: float = 0.0) -> Any:
        trial, row = self.trials[number], {"training_iteration": 1, "score": score}
        decision = self.scheduler.on_trial_result(self, trial, row)
        trial.last_result = row
        if isinstance(decision, Restart) and decision.resources is not None:
            trial.resources = decision.resources
            assert min(self.free_resources.values()) >= 0, "more was given than there is"
        return decision

    def end(self, number: int) -> None:
        self.trials[number].status = "TERMINATED"
        self.scheduler.on_trial_complete(self, self.trials[number], {})

    def held(self) -> list[dict[str, float]]:
        return [trial.resources for trial in self._with_status("RUNNING")]


def changing(**arguments: Any) -> ResourceChangingScheduler:
    return ResourceChangingScheduler(None, DistributeResources(**arguments))


def test_what_is_free_is_shared_equally_and_the_oldest_have_the_rest() -> None:
    machine = Machine(ResourceChangingScheduler(), 3, {"CPU": 8.0})
    decisions = [machine.report(number) for number in range(3)]
    assert all(isinstance(each, Restart) and each.donor is None and each.config is None for each in decisions)
    assert machine.held() == [{"CPU": 3.0}, {"CPU": 3.0}, {"CPU": 2.0}]
    assert [machine.report(number) for number in range(3)] == ["CONTINUE"] * 3


def test_shares_grow_when_a_trial_ends_and_shrink_for_a_newcomer() -> None:
    machine = Machine(ResourceChangingScheduler(), 2, {"CPU": 4.0})
    machine.report(0), machine.report(1)
    machine.end(1)
    machine.report(0)
    assert machine.held() == [{"CPU": 4.0}]

    newcomer = new_trial(2, {})
    machine.trials.append(newcomer)
    machine.scheduler.on_trial_add(machine, newcomer)
    machine.report(0)
    assert machine.held() == [{"CPU": 2.0}]
    newcomer.status, newcomer.checkpoint = "RUNNING", Checkpoint.from_dict({})
    machine.report(2)
    assert machine.held() == [{"CPU": 2.0}, {"CPU": 2.0}]


def test_only_what_is_free_now_is_given() -> None:
    machine = Machine(ResourceChangingScheduler(), 2, {"CPU": 4.0})
    machine.trials[0].resources = {"CPU": 3.0}  # more than its share, until it reports
    assert machine.report(1) == "CONTINUE"
    machine.report(0)
    machine.report(1)
    assert machine.held() == [{"CPU": 2.0}, {"CPU": 2.0}]


def test_nothing_is_shared_while_trials_may_come_or_wait() -> None:
    assert Machine(ResourceChangingScheduler(), 1, {"CPU": 4.0}, more=True).report(0) == "CONTINUE"
    machine = Machine(ResourceChangingScheduler(), 4, {"CPU": 4.0})
    for trial in machine.trials[1:]:
        trial.status = "PENDING"
    assert machine.report(0) == "CONTINUE"


@pytest.mark.parametrize(
    ("arguments", "base", "held"),
    [
        ({}, {"CPU": 2.0}, {"CPU": 8.0}),
        ({}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 2.0}),
        ({"add_bundles": True}, {"CPU": 3.0}, {"CPU": 6.0}),
        ({"add_bundles": True}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 2.0}),
        ({"increase_by": {"CPU": 4}}, {"CPU": 1.0}, {"CPU": 5.0}),
        ({"increase_by": {"CPU": 1, "GPU": 1}}, {"CPU": 1.0}, {"CPU": 3.0, "GPU": 2.0}),
        ({"increase_by": {"CPU": 1}, "increase_by_times": 2}, {"CPU": 1.0}, {"CPU": 3.0}),
        ({"increase_by_times": 1}, {"CPU": 1.0}, {"CPU": 2.0}),
        ({"reserve_resources": {"CPU": 3}}, {"CPU": 1.0}, {"CPU": 5.0}),
    ],
)
def test_by_what_shares_grow(arguments: dict[str, Any], base: dict[str, float], held: dict[str, float]) -> None:
    machine = Machine(changing(**arguments), 1, {"CPU": 8.0, "GPU": 2.0}, base)
    machine.report(0)
    assert machine.held() == [held]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_trial_gets_all_and_gives_it_back_when_another_is_better(mode: str) -> None:
    sign = 1 if mode == "max" else -1
    scheduler = ResourceChangingScheduler(None, DistributeResourcesToTopJob(metric="score", mode=mode))
    machine = Machine(scheduler, 3, {"CPU": 6.0})
    machine.report(0, 1 * sign), machine.report(1, 5 * sign), machine.report(2, 2 * sign)
    machine.report(0, 1 * sign)
    machine.report(1, 5 * sign)
    assert machine.held() == [{"CPU": 1.0}, {"CPU": 4.0}, {"CPU": 1.0}]
    machine.report(2, 9 * sign)  # the best now, but nothing is free
    machine.report(1, 5 * sign)
    machine.report(2, float("nan")), machine.report(2, 9 * sign)
    assert machine.held() == [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 4.0}]


def test_a_trial_without_checkpoints_keeps_what_it_has_and_that_is_said_once() -> None:
    machine = Machine(ResourceChangingScheduler(), 2, {"CPU": 8.0})
    for trial in machine.trials:
        trial.checkpoint = None
    with pytest.warns(UserWarning, match=r"checkpoint.*session\.report\(") as warned:
        assert [machine.report(number) for number in (0, 1, 0)] == ["CONTINUE"] * 3
    assert len(warned) == 1


def test_a_function_of_the_user() -> None:
    answers: list[Any] = [{"CPU": 3}, None, {"CPU": 3.0, "GPU": 0}, PlacementGroupFactory([{"CPU": 1}, {"CPU": 4}])]
    seen: list[Any] = []

    def allocate(controller: Any, trial: Trial, result: Any, scheduler: Any) -> Any:
        seen.append((controller, trial, result["score"], scheduler))
        return answers[len(seen) - 1]

    scheduler = ResourceChangingScheduler(resources_allocation_function=allocate)
    machine = Machine(scheduler, 1, {"CPU": 8.0})
    decisions = [machine.report(0, score) for score in (1, 2, 3, 4)]
    assert decisions == [
        Restart(resources={"CPU": 3.0}),
        "CONTINUE",
        "CONTINUE",
        Restart(resources={"CPU": 5.0}),
    ]
    assert seen == [(machine, machine.trials[0], score, scheduler) for score in (1, 2, 3, 4)]


def test_none_in_the_place_of_the_function_changes_nothing() -> None:
    with pytest.warns(UserWarning, match=r"resources_allocation_function=None") as warned:
        scheduler = ResourceChangingScheduler(None, None)
    assert warned[0].filename == __file__
    assert Machine(scheduler, 1, {"CPU": 4.0}).report(0) == "CONTINUE"
    assert scheduler.checkpoint_every() is None
    assert ResourceChangingScheduler().checkpoint_every() == 1


def test_the_scheduler_below_decides_who_goes_on() -> None:
    asha = ASHAScheduler(max_t=1)
    machine = Machine(ResourceChangingScheduler(asha), 2, {"CPU": 8.0})
    assert machine.report(0, 1.0) == "STOP"

    pbt = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=3, hyperparam_mutations={"lr": [1, 2]}, log_config=False
    )
    above = ResourceChangingScheduler(pbt)
    population = Population(above, [{"lr": 1}, {"lr": 2}, {"lr": 1}, {"lr": 2}], steps=9).run()
    assert population.iterations == [9] * 4
    assert above.checkpoint_every() == 3
    assert (above.metric, above.mode, above.result_keys) == (pbt.metric, pbt.mode, pbt.result_keys)
    assert pbt.debug_string() in above.debug_string()
    assert not above.live_trials
    assert ResourceChangingScheduler(ASHAScheduler(metric="a", mode="min")).set_search_properties("b", "min") is False


def test_a_replay_changes_nothing() -> None:
    machine = Machine(ResourceChangingScheduler(), 1, {"CPU": 8.0})
    machine.replaying = True
    assert machine.report(0) == "CONTINUE"


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="base_scheduler"):
        ResourceChangingScheduler("asha")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="resources_allocation_function"):
        ResourceChangingScheduler(None, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="increase_by_times"):
        DistributeResources(increase_by_times=-2)
    with pytest.raises(ConfigError, match=r"metric.*mode"):
        DistributeResourcesToTopJob(metric="score")
    untold = ResourceChangingScheduler()
    machine = Machine(ResourceChangingScheduler(), 1, {"CPU": 2.0})
    untold.on_trial_add(machine, machine.trials[0])
    with pytest.raises(ConfigError, match=r"DistributeResourcesToTopJob.*TuneConfig\(metric="):
        DistributeResourcesToTopJob()(machine, machine.trials[0], {"score": 1}, untold)
    negative = Machine(ResourceChangingScheduler(None, lambda *given: {"CPU": -1.0}), 1, {"CPU": 2.0})
    with pytest.raises(ConfigError, match=r"resources_allocation_function.*returned"):
        negative.report(0)
