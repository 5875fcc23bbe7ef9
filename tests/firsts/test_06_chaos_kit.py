"""First 6: users can make their training fail on purpose, and learn what their loop forgets.

Our own fault tests use the same kit: tests/faults/test_worker_crash.py, tests/faults/test_storage_faults.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.testing import ResumeDifferenceError, assert_resume_equivalent, chaos
from paceline.testing.invariants import check_run
from paceline.testing.scripts import ScriptPlan, make_trainer
from tests.testing import resume_loops
from tests.testing.resume_loops import torch_trainer


def plan(tmp_path: Path) -> ScriptPlan:
    return ScriptPlan(
        storage=str(tmp_path / "storage"),
        marks=str(tmp_path / "marks"),
        iterations=9,
        failures={"max_failures": 2},
        checkpoints={"keep_all_ranks": True},
    )


def test_a_run_survives_several_faults_at_known_steps(tmp_path: Path) -> None:
    with chaos(
        kill={"rank": 1, "step": 7},
        corrupt_checkpoint={"step": 6},
        fail={"rank": 0, "step": 3},
        slow={"rank": 0, "seconds": 0.001},
        slow_storage={"seconds": 0.001},
    ) as faults:
        result = make_trainer(plan(tmp_path)).fit()
    check_run(result.path, result=result, iterations=9, attempts=3)
    killed = next(fired for fired in faults.fired if fired.fault.startswith("kill"))
    assert (killed.rank, killed.step, killed.attempt) == (1, 7, 1)
    assert any("checkpoint_000005 is damaged" in warning for warning in result.warnings)


def test_a_loop_that_forgets_its_optimizer_is_caught_and_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ResumeDifferenceError) as caught:
        assert_resume_equivalent(torch_trainer("optimizer", tmp_path))
    assert caught.value.forgot == ["optimizer"]
    assert f"SGD, created at {resume_loops.__file__}" in str(caught.value)
