"""HyperBand against the paper's loops over recorded curves: who stops when does not depend on who reports first."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.testing.scheduler_simulation import SchedulerSimulation
from paceline.tune.schedulers import HyperBandScheduler
from tests.tune.schedulers.remembering import known_trials

Rows = list[dict[str, Any]]


def curves(count: int, length: int, seed: int) -> list[Rows]:
    generator = random.Random(seed)
    return [
        [{"training_iteration": t, "score": generator.random() + level * t / length} for t in range(1, length + 1)]
        for level in (generator.random() * 2 for _ in range(count))
    ]


def rows_by_the_paper(rows: list[Rows], max_t: int, factor: int, missing: dict[int, int] | None = None) -> list[int]:
    """How many rows each trial takes: the outer loop over brackets, the inner one over rounds.

    `missing` says after how many rows a trial fails.
    """
    missing = missing or {}
    s_max = int(math.log(max_t, factor) + 1e-9)
    taken = [0] * len(rows)
    waiting = list(range(len(rows)))
    s = s_max
    while waiting:
        size = math.ceil((s_max + 1) / (s + 1) * factor**s)
        live, waiting = waiting[:size], waiting[size:]
        entered = len(live)
        for i in range(s + 1):
            reach = max_t // factor ** (s - i)
            for trial in live:
                taken[trial] = min(reach, missing.get(trial, reach))
            live = [trial for trial in live if missing.get(trial, reach) >= reach]
            live.sort(key=lambda trial: rows[trial][reach - 1]["score"], reverse=True)
            live = live[: max(1, entered // factor ** (i + 1))]
        s = s - 1 if s else s_max
    return taken


def taken(simulation: SchedulerSimulation) -> list[int]:
    return [simulation.rows_taken[number] for number in sorted(simulation.rows_taken)]


def test_the_table_of_the_docstring() -> None:
    """81 + 34 + 15 + 8 + 5 trials fill one band of the defaults."""
    simulation = SchedulerSimulation(HyperBandScheduler(), curves(143, 90, 0), slots=16).run()
    ends = taken(simulation)
    brackets = [ends[:81], ends[81:115], ends[115:130], ends[130:138], ends[138:]]
    assert [Counter(bracket) for bracket in brackets] == [
        {1: 54, 3: 18, 9: 6, 27: 2, 81: 1},
        {3: 23, 9: 8, 27: 2, 81: 1},
        {9: 10, 27: 4, 81: 1},
        {27: 6, 81: 2},
        {81: 5},
    ]
    assert simulation.stalls == 0, "full brackets need no help"


@pytest.mark.parametrize(("slots", "seed"), [(1, 0), (3, 1), (8, 2), (100, 3)])
@pytest.mark.parametrize(("count", "max_t", "factor"), [(22, 9, 3), (30, 9, 3), (61, 16, 2), (40, 27, 3), (7, 64, 4)])
def test_who_stops_when_is_that_of_the_paper(slots: int, seed: int, count: int, max_t: int, factor: int) -> None:
    rows = curves(count, max_t + 5, seed)
    simulation = SchedulerSimulation(
        HyperBandScheduler(max_t=max_t, reduction_factor=factor), rows, slots=slots, seed=seed
    ).run()
    assert taken(simulation) == rows_by_the_paper(rows, max_t, factor)
    assert set(simulation.ended.values()) <= {"stop", "remove"}


@pytest.mark.parametrize("seed", range(3))
def test_min_mode_mirrors_max_mode(seed: int) -> None:
    rows = curves(25, 12, seed)
    mirrored = [[{**row, "score": -row["score"]} for row in curve] for curve in rows]
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), mirrored, mode="min", seed=seed).run()
    assert taken(simulation) == rows_by_the_paper(rows, 9, 3)


@pytest.mark.parametrize("seed", range(6))
def test_a_trial_that_fails_leaves_its_bracket_and_holds_up_nobody(seed: int) -> None:
    rows = curves(22, 12, seed)
    generator = random.Random(seed)
    failing = {generator.randrange(22): generator.randrange(9) for _ in range(6)}
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), rows, failing=failing, seed=seed).run()
    assert taken(simulation) == rows_by_the_paper(rows, 9, 3, missing=failing)


def test_a_whole_bracket_may_fail() -> None:
    rows = curves(12, 12, 0)
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), rows, failing=dict.fromkeys(range(9), 0)).run()
    assert taken(simulation)[:9] == [0] * 9
    assert max(taken(simulation)[9:]) == 9


def test_a_trial_that_ends_by_itself_leaves_its_bracket() -> None:
    rows = curves(9, 12, 1)
    rows[4] = rows[4][:2]
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), rows).run()
    expected = rows_by_the_paper(rows, 9, 3, missing={4: 2})
    assert taken(simulation) == expected
    assert simulation.ended[4] in ("complete", "stop", "remove")


def test_an_unfilled_bracket_goes_on_when_nothing_else_can() -> None:
    rows = curves(6, 12, 2)
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), rows).run()
    assert simulation.stalls == 1
    assert Counter(taken(simulation)) == {1: 4, 3: 1, 9: 1}


@pytest.mark.parametrize("most_open", [1, 2, 5])
def test_a_search_of_limited_concurrency_does_not_stand_still(most_open: int) -> None:
    """Paused trials keep the search from creating the ones that would fill their bracket."""
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), curves(23, 12, 2), most_open=most_open).run()
    assert len(simulation.ended) == 23
    assert max(taken(simulation)) == 9


def test_nan_is_the_worst_value_in_both_modes() -> None:
    rows = curves(9, 12, 3)
    for mode in ("min", "max"):
        for bad in (0, 8):
            spoilt = list(rows)
            spoilt[bad] = [{**row, "score": math.nan} for row in rows[bad]]
            simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), spoilt, mode=mode).run()
            assert taken(simulation)[bad] == 1


def test_all_nan_ends_as_well() -> None:
    rows = [[{"training_iteration": t, "score": math.nan} for t in range(1, 12)] for _ in range(9)]
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), rows).run()
    assert taken(simulation) == [9, 3, 3, 1, 1, 1, 1, 1, 1], "of equals, the earlier ones go on"


def test_a_row_without_the_metric_does_not_end_a_round() -> None:
    rows = curves(9, 12, 5)
    del rows[0][0]["score"]
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), rows).run()
    assert simulation.rows_taken[0] >= 2
    assert len(simulation.ended) == 9


def test_max_t_holds_without_the_metric() -> None:
    rows = [[{"training_iteration": t} for t in range(1, 12)] for _ in range(9)]
    assert taken(SchedulerSimulation(HyperBandScheduler(max_t=9), rows).run()) == [9] * 9


def test_rows_that_leap_over_rounds() -> None:
    rows = [[{"training_iteration": 4 * t, "score": float(number)} for t in range(1, 9)] for number in range(9)]
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), rows).run()
    # Rounds end at 1, 3 and 9; the rows are at 4, 8 and 12.
    assert taken(simulation) == [1, 1, 1, 1, 1, 1, 2, 2, 3]


def test_without_stop_last_trials_the_best_run_to_their_end() -> None:
    rows = curves(22, 15, 6)
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9, stop_last_trials=False), rows).run()
    expected = [15 if number == 9 else number for number in rows_by_the_paper(rows, 9, 3)]
    assert taken(simulation) == expected
    assert "complete" in simulation.ended.values()


def test_time_attr_is_what_counts() -> None:
    rows = [[{"training_iteration": 1, "seconds": t / 2, "score": t + n} for t in range(1, 30)] for n in range(9)]
    simulation = SchedulerSimulation(HyperBandScheduler("seconds", max_t=9), rows).run()
    assert Counter(taken(simulation)) == {2: 6, 6: 2, 18: 1}


def test_waiting_trials_keep_their_place_and_no_one_else_is_paused() -> None:
    simulation = SchedulerSimulation(HyperBandScheduler(max_t=9), curves(9, 12, 7), slots=3).run()
    paused = [(trial, rows) for trial, rows, decision in simulation.decisions if decision == "PAUSE"]
    assert {rows for _, rows in paused} == {1, 3}, "pauses happen at the ends of rounds"
    assert simulation.most_paused <= 8


def test_what_it_remembers_of_a_trial_goes_with_it() -> None:
    scheduler = HyperBandScheduler(max_t=9)
    SchedulerSimulation(scheduler, curves(30, 12, 0), failing={2: 1, 5: 3}).run()
    assert not known_trials(scheduler)
    assert "no open bracket" in scheduler.debug_string()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"max_t": 0}, "max_t"),
        ({"reduction_factor": 1}, "reduction_factor"),
        ({"mode": "up"}, "mode"),
        ({"stop_last_trials": 1}, "stop_last_trials"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        HyperBandScheduler(**arguments)
