"""A worker runs out of memory: ended by the kernel in a control group, or refused by its own address space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.testing.invariants import check_run
from paceline.testing.scripts import Action
from tests.faults.control_groups import ControlGroups
from tests.faults.laboratory import Laboratory

LIMIT = 600 * 2**20
"""Enough for a driver, its warden and two workers that do nothing."""


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A control group whose processes have LIMIT bytes of memory together."""
    groups = ControlGroups()
    yield groups.make(LIMIT)
    groups.remove()


def test_a_worker_that_the_kernel_kills_for_memory_is_called_so(lab: Laboratory, control_group: Path) -> None:
    """A7, with the kernel's own out-of-memory killer."""
    plan = lab.plan(Action("allocate", 3, 1, 4 * LIMIT), checkpoints={"keep_all_ranks": True})
    join = ("sh", "-c", f'echo $$ > {control_group}/cgroup.procs && exec "$0" "$@"')
    with lab.drive(plan, prefix=join) as driver:
        lab.marks.wait("action", do="allocate")
        driver.family()
        assert driver.wait() == 1
        check_run(lab.trial_dir, processes=driver.known(), attempts=1)
        text = driver.text()
    outcome = lab.outcome()
    assert outcome["outcome"] == "failed"
    assert (outcome["cause"]["rank"], outcome["cause"]["kind"]) == (1, "oom")
    assert "0.6 GB: probably out of memory" in outcome["cause"]["message"]
    assert "Use a smaller batch" in text
    assert {int(mark["iteration"]) for mark in lab.marks.read("saved")} == {1, 2}


def test_memory_error_is_an_error_of_the_users_code(lab: Laboratory) -> None:
    """A7, where the address space has a limit: Python raises, and the line that asked for the memory is shown."""
    limits = {"address_space": 2**30, "most": 2**31}
    error = lab.fail(
        lab.plan(Action("allocate within a limit", 3, 1, limits)), {"rank": 1, "kind": "exception"}, iterations=None
    )
    assert isinstance(error.__cause__, MemoryError)
    assert error.root_cause is not None
    assert "_allocate" in error.root_cause.traceback
