"""A search is a journal: killed anywhere, moved and enlarged, it neither loses nor repeats a trial."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline.testing.processes import fault
from paceline.tune import Tuner
from tests.faults.cases import long_run, rounds
from tests.faults.search_programs import counting_trial, make_tuner
from tests.faults.test_search_driver_death import POINTS, configurations
from tests.faults.tune_laboratory import TuneLaboratory
from tests.tune.search_invariants import check_finished

SETTINGS: dict[str, Any] = {"searcher": "optuna", "at_once": 1, "trials": 6, "iterations": 3}
MORE = 8


def place_and_time(seed: int) -> tuple[str, int]:
    chance = random.Random(seed)
    place = chance.choice(list(POINTS))
    return place, chance.randint(1, POINTS[place])


@pytest.mark.parametrize("seeds", [range(1), long_run(range(100, 100 + rounds(100)), seconds=1200)])
def test_a_killed_search_is_moved_and_enlarged(tmp_path: Path, seeds: range) -> None:
    """H4: One trial at a time: then what TPE suggests next does not depend on which trial is faster."""
    reference = TuneLaboratory(tmp_path / "reference")
    make_tuner(reference.plan(**{**SETTINGS, "trials": MORE})).fit()
    wanted = configurations(reference.experiment)
    killed = 0
    for seed in seeds:
        lab = TuneLaboratory(tmp_path / f"seed_{seed}")
        place, times = place_and_time(seed)
        with lab.drive(lab.plan(**SETTINGS), env=fault(place, rank="driver", times=times)) as driver:
            killed += driver.wait() == -signal.SIGKILL
        if not any(lab.storage.glob("*/experiment-*.jsonl")) or not Tuner.can_restore(lab.experiment):
            continue  # it was killed before there was anything to restore
        moved = tmp_path / f"moved_{seed}"
        shutil.move(lab.experiment, moved)
        grid = Tuner.restore(str(moved), counting_trial, num_samples=MORE).fit()
        check_finished(grid, trials=MORE, iterations=3)
        assert [{**each, "marks": ""} for each in configurations(moved)] == [{**each, "marks": ""} for each in wanted]
    assert killed
