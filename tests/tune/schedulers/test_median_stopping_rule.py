"""The median stopping rule against a literal reading of it, and each of its arguments."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from paceline.air.errors import ConfigError
from paceline.testing.scheduler_simulation import SchedulerSimulation
from paceline.tune.schedulers import MedianStoppingRule
from tests.tune.schedulers.remembering import holds_trials, known_trials

Rows = list[dict[str, Any]]


def curves(count: int, length: int, seed: int, time_attr: str = "t") -> list[Rows]:
    generator = random.Random(seed)
    return [
        [{time_attr: t, "score": level + generator.gauss(0, 0.2) + t / length} for t in range(1, length + 1)]
        for level in (generator.random() for _ in range(count))
    ]


def flat(*levels: float, length: int = 10) -> list[Rows]:
    return [[{"t": t, "score": level} for t in range(1, length + 1)] for level in levels]


def rule(**arguments: Any) -> MedianStoppingRule:
    return MedianStoppingRule("t", **{"grace_period": 2, "min_samples_required": 2, **arguments})


def expected_decisions(simulation: SchedulerSimulation, grace: float, samples: int, sign: float) -> list[str]:
    """The rule, word for word, over the rows in the order in which they came."""
    seen: dict[int, list[tuple[float, float]]] = defaultdict(list)
    decisions = []
    for call in simulation.calls:
        if call.hook != "on_trial_result":
            continue
        assert call.trial is not None
        assert call.row is not None
        now = call.row["t"]
        seen[call.trial].append((now, sign * call.row["score"]))
        if now < grace:
            decisions.append("CONTINUE")
            continue
        averages = [
            np.mean([value for time, value in rows if grace <= time <= now])
            for other, rows in seen.items()
            if other != call.trial and max(time for time, _ in rows) >= now
        ]
        best = max(value for _, value in seen[call.trial])
        behind = len(averages) >= samples and best < np.median(averages)
        decisions.append("STOP" if behind else "CONTINUE")
    return decisions


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("grace", "samples", "slots"), [(1, 1, 4), (3, 3, 3), (5, 2, 1)])
def test_every_decision_is_that_of_the_rule(mode: str, seed: int, grace: float, samples: int, slots: int) -> None:
    scheduler = rule(grace_period=grace, min_samples_required=samples)
    simulation = SchedulerSimulation(scheduler, curves(30, 20, seed), mode=mode, seed=seed, slots=slots).run()

    decided = [call.decision for call in simulation.calls if call.hook == "on_trial_result"]
    assert decided == expected_decisions(simulation, grace, samples, 1.0 if mode == "max" else -1.0)
    assert "STOP" in decided
    assert "complete" in simulation.ended.values()


def test_defaults_are_seconds_and_a_minute_of_grace() -> None:
    rows = [[{"time_total_s": 20.0 * t, "score": level} for t in range(1, 6)] for level in (3.0, 2.0, 2.5, 1.0)]
    simulation = SchedulerSimulation(MedianStoppingRule(), rows, slots=1).run()
    assert simulation.rows_taken == {0: 5, 1: 5, 2: 5, 3: 3}


def test_grace_period_and_samples_are_waited_for() -> None:
    levels = flat(5.0, 4.0, 1.0)
    assert SchedulerSimulation(rule(), levels, slots=1).run().rows_taken[2] == 2
    assert SchedulerSimulation(rule(grace_period=6), levels, slots=1).run().rows_taken[2] == 6
    assert SchedulerSimulation(rule(min_samples_required=3), levels, slots=1).run().rows_taken[2] == 10


def test_only_trials_that_came_as_far_count() -> None:
    short, long = flat(5.0, 5.0, length=3), flat(1.0)
    assert SchedulerSimulation(rule(grace_period=4), [*short, *long], slots=1).run().ended[2] == "complete"


def test_only_trials_that_had_reported_by_then_count() -> None:
    late = [[{"t": t, "score": 5.0} for t in (6, 10)] for _ in range(2)]
    assert SchedulerSimulation(rule(), [*late, *flat(1.0)], slots=1).run().rows_taken[2] == 6


def test_a_trial_at_the_median_goes_on() -> None:
    assert set(SchedulerSimulation(rule(), flat(2.0, 2.0, 2.0, 2.0)).run().ended.values()) == {"complete"}


def test_nan_is_the_worst_value_in_both_modes() -> None:
    for mode in ("min", "max"):
        simulation = SchedulerSimulation(rule(), flat(5.0, -4.0, math.nan), slots=1, mode=mode).run()
        assert simulation.rows_taken[2] == 2
        simulation = SchedulerSimulation(rule(), flat(math.nan, math.nan, 0.0), slots=1, mode=mode).run()
        assert simulation.ended[2] == "complete"


def test_a_row_without_the_metric_is_passed_over() -> None:
    rows = flat(5.0, 4.0, 1.0)
    del rows[2][1]["score"]
    assert SchedulerSimulation(rule(), rows, slots=1).run().rows_taken[2] == 3


def test_rows_reported_again_after_a_retry_count_once() -> None:
    again = [{"t": t, "score": s} for t, s in ((2, 4.0), (3, 4.0), (2, 0.0), (3, 0.0), (4, 4.0))]
    simulation = SchedulerSimulation(rule(min_samples_required=1), [again, *flat(3.0)], slots=1).run()
    # The average at 2 is 4.0; with the second passing it would be 2.0.
    assert simulation.rows_taken[1] == 2


def test_without_hard_stop_a_trial_runs_to_its_end_when_the_others_have() -> None:
    simulation = SchedulerSimulation(rule(hard_stop=False), flat(5.0, 4.0, 1.0, 0.5, 6.0), slots=1).run()
    assert set(simulation.ended.values()) == {"complete"}
    assert simulation.decisions == [(2, 2, "PAUSE"), (3, 2, "PAUSE")]
    assert list(simulation.ended) == [0, 1, 4, 2, 3]


def test_nobody_makes_room_for_a_trial_that_was_postponed() -> None:
    # The last one outlives those it is compared with; only the postponed one waits.
    rows = [*flat(5.0, 4.0, 1.0), *flat(6.0, length=15)]
    simulation = SchedulerSimulation(rule(hard_stop=False), rows, slots=1).run()
    assert simulation.decisions == [(2, 2, "PAUSE")]
    assert list(simulation.ended) == [0, 1, 3, 2]


def test_a_postponed_trial_comes_after_those_that_made_room() -> None:
    scheduler = rule(hard_stop=False, min_time_slice=3)
    simulation = SchedulerSimulation(scheduler, flat(5.0, 4.0, 1.0, 6.0), slots=1).run()
    assert simulation.decisions[:4] == [(0, 3, "PAUSE"), (1, 3, "PAUSE"), (2, 2, "PAUSE"), (3, 4, "PAUSE")]
    ends = list(simulation.ended)
    assert ends.index(2) > max(ends.index(0), ends.index(3)), "0 and 3 made room; 2 was below the median"


def test_paused_trials_go_on_if_the_search_waits_for_them() -> None:
    scheduler = rule(hard_stop=False)
    simulation = SchedulerSimulation(scheduler, flat(5.0, 4.0, 1.0, 0.5, 6.0, 0.1), slots=2, most_open=2).run()
    assert set(simulation.ended.values()) == {"complete"}
    assert simulation.stalls >= 1


def test_a_time_slice_lets_others_catch_up_until_there_is_something_to_compare() -> None:
    levels = flat(5.0, 4.0, 3.0, 1.0)
    simulation = SchedulerSimulation(rule(min_time_slice=4), levels, slots=1).run()
    first_yields = [(trial, rows) for trial, rows, decision in simulation.decisions if decision == "PAUSE"][:2]
    assert first_yields == [(0, 4), (1, 4)], "each runs for a slice, then the next one"
    assert simulation.rows_taken[3] == 2, "by then there is something to compare with"
    assert simulation.rows_taken[0] == 10

    longer = SchedulerSimulation(rule(min_time_slice=7), levels, slots=1).run()
    assert next(rows for _, rows, decision in longer.decisions if decision == "PAUSE") == 7


def test_without_a_time_slice_trials_make_room_only_for_trials_that_exist() -> None:
    simulation = SchedulerSimulation(rule(), flat(5.0, 4.0, 3.0, 1.0), slots=1).run()
    assert "PAUSE" not in [decision for _, _, decision in simulation.decisions]


def test_those_who_made_room_go_on_in_turn() -> None:
    simulation = SchedulerSimulation(rule(min_time_slice=3, min_samples_required=9), flat(3, 2, 1), slots=1).run()
    order = [call.trial for call in simulation.calls if call.hook == "on_trial_result"]
    changes = [trial for trial, before in zip(order, [None, *order[:-1]], strict=True) if trial != before]
    assert changes[:6] == [0, 1, 2, 0, 1, 2]
    assert set(simulation.ended.values()) == {"complete"}


def test_ended_trials_are_remembered_as_curves_only() -> None:
    scheduler = rule(hard_stop=False, min_time_slice=1)
    SchedulerSimulation(scheduler, curves(20, 10, 0), failing={3: 4}).run()
    assert len(known_trials(scheduler)) == 20
    assert not holds_trials(scheduler)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"grace_period": -1}, "grace_period"),
        ({"min_time_slice": "1"}, "min_time_slice"),
        ({"min_samples_required": 0}, "min_samples_required"),
        ({"hard_stop": None}, "hard_stop"),
        ({"mode": "avg"}, "mode"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        MedianStoppingRule(**arguments)
