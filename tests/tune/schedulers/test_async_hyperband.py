"""ASHA against a literal reading of its rule, and each of its arguments."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

from paceline.air.errors import ConfigError
from paceline.testing.scheduler_simulation import SchedulerSimulation
from paceline.tune.schedulers import ASHAScheduler, AsyncHyperBandScheduler
from tests.tune.schedulers.remembering import known_trials


def curves(count: int, length: int, seed: int) -> list[list[dict[str, Any]]]:
    """Noisy learning curves with different ends, so that ranks change on the way."""
    generator = random.Random(seed)
    made = []
    for _ in range(count):
        end, pace = generator.random(), generator.uniform(0.02, 0.5)
        made.append(
            [
                {"training_iteration": t, "score": end * (1 - math.exp(-pace * t)) + generator.gauss(0, 0.03)}
                for t in range(1, length + 1)
            ]
        )
    return made


def expected_decisions(
    simulation: SchedulerSimulation, milestones: list[float], factor: float, max_t: float, sign: float = 1.0
) -> list[str]:
    """The rule, word for word, over the rows in the order in which they came."""
    left_there: dict[float, dict[int, float]] = defaultdict(dict)
    decisions = []
    for call in simulation.calls:
        if call.hook != "on_trial_result":
            continue
        assert call.trial is not None
        assert call.row is not None
        time, value = call.row["training_iteration"], sign * call.row["score"]
        value = -math.inf if math.isnan(value) else value
        stop = time >= max_t
        for milestone in milestones:
            rung = left_there[milestone]
            if time >= milestone and call.trial not in rung:
                if rung and value < np.percentile(list(rung.values()), (1 - 1 / factor) * 100):
                    stop = True
                rung[call.trial] = value
        decisions.append("STOP" if stop else "CONTINUE")
    return decisions


def decisions(simulation: SchedulerSimulation) -> list[Any]:
    return [call.decision for call in simulation.calls if call.hook == "on_trial_result"]


@pytest.mark.parametrize("seed", range(8))
def test_every_decision_is_that_of_the_rule(seed: int) -> None:
    simulation = SchedulerSimulation(ASHAScheduler(max_t=100), curves(48, 120, seed), seed=seed).run()

    assert decisions(simulation) == expected_decisions(simulation, [1, 4, 16, 64], 4, 100)
    taken = Counter(simulation.rows_taken.values())
    assert taken.keys() <= {1, 4, 16, 64, 100}, "trials stop at rungs and at max_t only"
    assert taken[1] + taken[4] >= 24, "most trials stop early"
    assert taken[100] >= 1


@pytest.mark.parametrize(
    ("arguments", "milestones"),
    [
        ({"max_t": 30, "grace_period": 3, "reduction_factor": 2}, [3, 6, 12, 24]),
        ({"max_t": 27, "grace_period": 1, "reduction_factor": 3}, [1, 3, 9]),
        ({"max_t": 20, "grace_period": 1, "reduction_factor": 2.5}, [1, 2.5, 6.25, 15.625]),
        ({"max_t": 5, "grace_period": 5, "reduction_factor": 4}, []),
    ],
)
def test_rungs_lie_below_max_t(arguments: dict[str, float], milestones: list[float]) -> None:
    simulation = SchedulerSimulation(ASHAScheduler(**arguments), curves(40, 40, 3), seed=5).run()  # type: ignore[arg-type]

    expected = expected_decisions(simulation, milestones, arguments["reduction_factor"], arguments["max_t"])
    assert decisions(simulation) == expected
    assert set(simulation.rows_taken.values()) <= {math.ceil(at) for at in [*milestones, arguments["max_t"]]}


@pytest.mark.parametrize("seed", range(3))
def test_min_mode_mirrors_max_mode(seed: int) -> None:
    rows = curves(40, 70, seed)
    mirrored = [[{**row, "score": -row["score"]} for row in curve] for curve in rows]

    greatest = SchedulerSimulation(ASHAScheduler(), rows, mode="max", seed=seed).run()
    least = SchedulerSimulation(ASHAScheduler(), mirrored, mode="min", seed=seed).run()

    assert least.decisions == greatest.decisions
    assert "stop" in least.ended.values()
    assert decisions(least) == expected_decisions(least, [1, 4, 16, 64], 4, 100, sign=-1.0)


def test_metric_and_mode_of_its_own_are_used() -> None:
    rows = curves(30, 20, 1)
    simulation = SchedulerSimulation(ASHAScheduler(metric="score", mode="max"), rows, seed=1).run()
    assert simulation.decisions == SchedulerSimulation(ASHAScheduler(), rows, seed=1).run().decisions


def test_nan_is_the_worst_value_in_both_modes() -> None:
    good = [[{"training_iteration": t, "score": value} for t in (1, 2)] for value in (0.0, -5.0, 5.0)]
    nan = [{"training_iteration": t, "score": math.nan} for t in (1, 2)]
    for mode in ("min", "max"):
        one = SchedulerSimulation(ASHAScheduler(max_t=10), [*good, nan], slots=1, mode=mode).run()
        assert one.rows_taken[3] == 1, "stopped at its first rung"
        first = SchedulerSimulation(ASHAScheduler(max_t=10), [nan, nan, good[0]], slots=1, mode=mode).run()
        assert first.rows_taken[2] == 2, "values that are numbers pass those that are not"
    simulation = SchedulerSimulation(ASHAScheduler(max_t=100), [*curves(20, 70, 2), nan], seed=2).run()
    assert decisions(simulation) == expected_decisions(simulation, [1, 4, 16, 64], 4, 100)


def test_a_row_without_the_metric_is_passed_over() -> None:
    better = [{"training_iteration": t, "score": 1.0} for t in range(1, 4)]
    worse = [{"training_iteration": 1}, {"training_iteration": 2, "score": 0.0}, {"training_iteration": 3, "score": 0}]
    simulation = SchedulerSimulation(ASHAScheduler(max_t=3), [better, worse], slots=1).run()
    assert simulation.rows_taken == {0: 3, 1: 2}


def test_max_t_stops_also_where_no_metric_is_reported() -> None:
    simulation = SchedulerSimulation(ASHAScheduler(max_t=3), [[{"training_iteration": t} for t in range(1, 9)]]).run()
    assert simulation.rows_taken == {0: 3}


def test_a_row_that_jumps_over_rungs_counts_once_at_each() -> None:
    leaps = [{"training_iteration": 20, "score": 1.0}, {"training_iteration": 21, "score": 0.0}]
    slow = [{"training_iteration": t, "score": 0.5} for t in range(1, 5)]
    simulation = SchedulerSimulation(ASHAScheduler(max_t=100), [leaps, slow], slots=1).run()
    # The second row of the leaping trial is at no new rung, so its bad value harms nobody.
    assert simulation.ended == {0: "complete", 1: "stop"}
    assert simulation.rows_taken == {0: 2, 1: 1}, "0.5 is below the 1.0 left at rung 1"


def test_a_leap_is_measured_at_every_rung_it_passes() -> None:
    first = [{"training_iteration": t, "score": 1.0} for t in range(1, 4)]
    leaps = [{"training_iteration": t, "score": 0.5} for t in (20, 21)]
    simulation = SchedulerSimulation(ASHAScheduler(max_t=100), [first, leaps], slots=1).run()
    assert simulation.rows_taken[1] == 1, "the first at rung 16, but behind at rung 1"


def test_equals_go_on() -> None:
    rows = [[{"training_iteration": t, "score": 0.1} for t in range(1, 30)] for _ in range(20)]
    simulation = SchedulerSimulation(ASHAScheduler(max_t=100), rows).run()
    assert set(simulation.ended.values()) == {"complete"}


def test_rows_reported_again_after_a_retry_are_not_compared_again() -> None:
    retried = [{"training_iteration": t, "score": s} for t, s in ((1, 1.0), (2, 1.0), (1, -9.0), (2, -9.0), (3, 1.0))]
    other = [{"training_iteration": t, "score": 0.5} for t in (1, 2, 3)]
    simulation = SchedulerSimulation(ASHAScheduler(), [retried, other], slots=1).run()
    assert simulation.rows_taken == {0: 5, 1: 1}


def test_time_attr_is_what_counts() -> None:
    rows = [[{"training_iteration": 1, "seconds": t / 2, "score": 1.0} for t in range(1, 30)]]
    assert SchedulerSimulation(ASHAScheduler("seconds", max_t=6), rows).run().rows_taken == {0: 12}


def test_a_time_that_is_not_reported_is_said() -> None:
    with pytest.warns(UserWarning, match="time_attr='epochs'"):
        SchedulerSimulation(ASHAScheduler(time_attr="epochs"), curves(2, 3, 0)).run()


def test_nested_metric() -> None:
    rows = [[{"training_iteration": t, "val": {"score": s}} for t in (1, 2)] for s in (1.0, 0.0)]
    simulation = SchedulerSimulation(ASHAScheduler(max_t=9), rows, metric="val/score", slots=1).run()
    assert simulation.rows_taken == {0: 2, 1: 1}


def test_without_stop_last_trials_the_survivors_run_to_their_end() -> None:
    rows = curves(30, 50, 4)
    simulation = SchedulerSimulation(ASHAScheduler(max_t=16, stop_last_trials=False), rows, seed=4).run()
    assert decisions(simulation) == expected_decisions(simulation, [1, 4], 4, math.inf)
    assert "complete" in simulation.ended.values()
    assert set(simulation.rows_taken.values()) <= {1, 4, 50}


def test_brackets_leave_out_rungs_and_are_drawn_by_their_softmax() -> None:
    equal = [[{"training_iteration": t, "score": -float(n)} for t in range(1, 6)] for n in range(1000)]
    simulation = SchedulerSimulation(ASHAScheduler(max_t=5, brackets=3), equal, slots=1, seed=7).run()
    # Each trial is worse than all before: it stops at the first rung of its bracket, if that has one.
    taken = Counter(simulation.rows_taken.values())
    weights = np.exp([2.0, 1.0, 0.0]) / np.exp([2.0, 1.0, 0.0]).sum()
    assert taken.keys() == {1, 4, 5}
    for rows, weight in zip((1, 4, 5), weights, strict=True):
        assert abs(taken[rows] / 1000 - weight) < 0.05


def test_the_seed_decides_the_brackets() -> None:
    rows = curves(40, 20, 0)

    def taken(seed: int) -> dict[int, int]:
        scheduler = ASHAScheduler(brackets=3)
        simulation = SchedulerSimulation(scheduler, rows, seed=1, slots=1)
        scheduler.set_seed(seed)
        return simulation.run().rows_taken

    assert taken(3) == taken(3)
    assert taken(3) != taken(4)


def test_what_it_remembers_of_a_trial_goes_with_it() -> None:
    scheduler = ASHAScheduler(max_t=10, brackets=2)
    SchedulerSimulation(scheduler, curves(50, 20, 0), failing={3: 0, 4: 1}).run()
    assert not known_trials(scheduler)


def test_debug_string_shows_cutoffs_in_units_of_the_metric() -> None:
    scheduler = ASHAScheduler(max_t=10)
    rows = [[{"training_iteration": 1, "score": 7.5}]]
    SchedulerSimulation(scheduler, rows, mode="min").run()
    assert "1 7.5" in scheduler.debug_string()
    assert "4 none" in scheduler.debug_string()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"max_t": 0}, "max_t"),
        ({"max_t": 5, "grace_period": 6}, "grace_period"),
        ({"grace_period": 0}, "grace_period"),
        ({"reduction_factor": 1}, "reduction_factor"),
        ({"brackets": 0}, "brackets"),
        ({"mode": "best"}, "mode"),
        ({"stop_last_trials": "no"}, "stop_last_trials"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        AsyncHyperBandScheduler(**arguments)
