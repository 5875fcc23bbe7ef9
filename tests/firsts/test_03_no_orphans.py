"""Whatever ends a driver, everything that it started ends with it: workers, their children, and daemons."""

from __future__ import annotations

import random
import signal

import pytest

from paceline.testing.invariants import check_no_processes
from paceline.testing.scripts import Action
from tests.faults.cases import long_run, rounds
from tests.faults.laboratory import Laboratory

FOREVER = 1_000_000


@pytest.mark.parametrize("kills", [2, long_run(rounds(100), seconds=900)])
def test_nothing_survives_a_driver_that_is_killed_at_any_moment(lab: Laboratory, kills: int) -> None:
    """Each rank has a child, one in another session, and one that was forked twice."""
    chance = random.Random(3)
    for round_number in range(kills):
        room = Laboratory(lab.root / str(round_number))
        daemons = [Action("daemons", 2, 1, str(room.marks.directory))]
        with room.drive(room.plan(*daemons, iterations=FOREVER, every=3, checkpoints={"num_to_keep": 1})) as driver:
            event, count = chance.choice([("started", 1), ("daemon", 3), ("reported", chance.randint(2, 60))])
            room.marks.wait(event, count)
            driver.kill()
            assert driver.wait() == -signal.SIGKILL
            check_no_processes(room.trial_dir, driver.known())
