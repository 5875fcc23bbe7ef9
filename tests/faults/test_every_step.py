"""Death at every step of the report and checkpoint protocol, in every process that takes it."""

from __future__ import annotations

import signal

import pytest

from paceline.air.errors import RestoreError
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.processes import fault
from paceline.testing.scripts import Action, make_trainer, read_state
from paceline.train import DataParallelTrainer
from tests.faults.cases import mostly_slow
from tests.faults.laboratory import Laboratory

pytestmark = pytest.mark.usefixtures("fault_engine")

WORKER_STEPS = [
    # At the second checkpoint or later, so that there is an older one to fall back to.
    ("before_stage_create", 2),
    ("after_stage_create", 2),
    ("after_stage_file", 4),
    ("after_stage_file", 5),
    ("after_stage_file", 6),
    ("after_stage_fsync", 2),
    ("after_stage_manifest", 2),
    ("before_report_send", 2),
]

DRIVER_STEPS = [
    ("after_journal_append", 1),
    *[(point, times) for point in ("before_journal_append", "after_journal_append") for times in (2, 3, 4, 5, 6)],
    ("before_commit_rename", 2),
    ("after_commit_rename", 2),
    ("before_ack", 2),
    ("before_trash", 1),
    ("after_trash", 1),
    ("after_delete", 1),
]

RANKS = (0, 1)
EVERYDAY_WORKER_STEPS = [
    ("after_stage_file", 5, 0),
    ("after_stage_manifest", 2, 0),
    ("before_report_send", 2, 1),
]
EVERYDAY_DRIVER_STEPS = [
    ("before_journal_append", 4),
    ("after_commit_rename", 2),
    ("before_ack", 2),
    ("after_trash", 1),
]

KEEP = 2


@pytest.mark.parametrize(
    ("point", "times", "rank"),
    mostly_slow([(*step, rank) for step in WORKER_STEPS for rank in RANKS], everyday=EVERYDAY_WORKER_STEPS),
)
def test_run_continues_after_a_worker_died_at(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch, point: str, times: int, rank: int
) -> None:
    """A5: Both ranks stage files here, so both pass every step."""
    [(name, spec)] = fault(point, rank=rank, attempt=0, times=times).items()
    monkeypatch.setenv(name, spec)
    plan = lab.plan(
        iterations=5, failures={"max_failures": 1}, checkpoints={"num_to_keep": KEEP, "keep_all_ranks": True}
    )
    lab.succeed(plan, attempts=2)
    assert all(mark["after"] in (0, 1, 2) for mark in lab.marks.read("started"))
    assert [read_state(path) for path in committed_checkpoints(lab.trial_dir)] == [4, 5]


@pytest.mark.parametrize(("point", "times"), mostly_slow(DRIVER_STEPS, everyday=EVERYDAY_DRIVER_STEPS))
def test_run_is_restored_after_its_driver_died_at(lab: Laboratory, point: str, times: int) -> None:
    """A5."""
    plan = lab.plan(iterations=5, checkpoints={"num_to_keep": KEEP})
    with lab.drive(plan, env=fault(point, rank="driver", times=times)) as driver:
        assert driver.wait() == -signal.SIGKILL, f"the driver never came to {point}"
        check_run(lab.trial_dir, processes=driver.known(), swept=False)
    promised = max((mark["iteration"] for mark in lab.marks.read("saved", rank=0)), default=0)
    kept = [read_state(path) for path in committed_checkpoints(lab.trial_dir)]
    assert max(kept, default=0) >= promised, f"iteration {promised} was acknowledged, on disk are {kept}"
    assert len(kept) >= min(promised, KEEP)

    result = lab.succeed(plan.continued(lab.trial_dir))
    assert len(result.best_checkpoints) == KEEP
    resumed_after = {mark["after"] for mark in lab.marks.read("started")} - {0}
    assert all(after >= promised for after in resumed_after)


def test_nothing_to_restore_when_the_driver_died_before_the_run_was_written_down(lab: Laboratory) -> None:
    """There is nothing to continue then, and that is said; no worker ever started."""
    plan = lab.plan()
    with lab.drive(plan, env=fault("before_journal_append", rank="driver")) as driver:
        assert driver.wait() == -signal.SIGKILL
        check_run(lab.trial_dir, processes=driver.known(), swept=False)
    assert lab.marks.read("started") == []
    assert not DataParallelTrainer.can_restore(str(lab.trial_dir))
    with pytest.raises(RestoreError):
        make_trainer(plan.continued(lab.trial_dir)).fit()

    stillborn = lab.trial_dir
    error = lab.fail(lab.plan(Action("raise", 3, 0, "enough")), {"kind": "exception"})
    assert error.result is not None
    result = make_trainer(plan.continued(stillborn.parent)).fit()
    assert result.path == error.result.path, "the run beside it cannot be found any more"
    check_run(result.path, result=result, iterations=plan.iterations, attempts=2)
