"""A kill at any point of a save costs that save at most. What can be loaded is whole."""

from __future__ import annotations

import random

import pytest

from paceline.air.faults import FAULT_VARIABLE
from paceline.testing.scripts import saved_iteration
from tests.faults.cases import long_run, rounds
from tests.faults.laboratory import Laboratory

WHILE_SAVING = (
    "before_stage_create",
    "after_stage_create",
    "after_stage_file",
    "after_stage_fsync",
    "after_stage_manifest",
    "before_report_send",
)


@pytest.mark.parametrize("kills", [5, long_run(rounds(200), seconds=600)])
def test_every_attempt_resumes_from_a_whole_checkpoint(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """Both ranks save, and one of them is killed while it does, again and again in one run.

    The loop compares every file of the checkpoint that it resumes from with what was saved: a torn one, or one that is
    mixed from two saves, is one more failure, and then there are no retries left.
    """
    chance = random.Random(4)
    points = ((chance.choice(WHILE_SAVING), chance.randint(0, 1), chance.randint(2, 5)) for _ in range(kills))
    faults = [
        f"{point}:rank={rank}:attempt={attempt}:times={times}:SIGKILL"
        for attempt, (point, rank, times) in enumerate(points)
    ]
    monkeypatch.setenv(FAULT_VARIABLE, ";".join(faults))
    plan = lab.plan(
        iterations=10 * kills,
        failures={"max_failures": kills},
        checkpoints={"keep_all_ranks": True, "num_to_keep": 2},
    )
    result = lab.succeed(plan, attempts=kills + 1)
    assert saved_iteration(result.checkpoint) == plan.iterations
