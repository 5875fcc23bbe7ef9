"""A driver that dies between the commit of a checkpoint and the decision on its row: a restore decides on it."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import Checkpoint, RunConfig, session
from paceline.testing.processes import Driver, fault
from paceline.tune import TuneConfig, Tuner
from paceline.tune.experiment.records import RowSeen, SearchRecords
from paceline.tune.schedulers import HyperBandScheduler
from tests.faults.cases import mostly_slow


def count(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(done + 1, 8):
        session.report({"enough": int(step == 4)}, checkpoint=Checkpoint.from_dict({"step": step}))


def search(storage: Path) -> Tuner:
    return Tuner(count, run_config=RunConfig(storage_path=str(storage), name="search", verbose=0, stop={"enough": 1}))


def killed(storage: Path, search: str, **where: Any) -> None:
    """Run one of the searches of this file in a driver that is killed at the given point."""
    script = storage / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys
            from pathlib import Path
            from tests.faults.test_search_late_decisions import {search}
            {search}(Path(sys.argv[1])).fit()
        """)
    )
    env = {**fault(**where), "PYTHONPATH": str(Path(__file__).parents[2])}
    with Driver([str(script), str(storage)], output=storage / "driver.txt", env=env) as driver:
        assert driver.wait() == -signal.SIGKILL, driver.text()


@pytest.mark.parametrize(
    ("point", "times"), mostly_slow([("before_ack", 4), ("after_commit_rename", 4)], everyday=[("before_ack", 4)])
)
def test_row_of_the_newest_checkpoint_is_decided_on(tmp_path: Path, point: str, times: int) -> None:
    killed(tmp_path, "search", point=point, times=times, rank="driver")
    (journal,) = (tmp_path / "search").glob("experiment-*.jsonl")
    assert not [record for record in SearchRecords(journal).all if isinstance(record, RowSeen)]
    (result,) = Tuner.restore(tmp_path / "search", count).fit()
    assert result.error is None
    assert result.metrics["training_iteration"] == 4


def climb(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    for step in range(checkpoint.to_dict()["step"] + 1 if checkpoint else 1, 10):
        session.report({"height": step * config["rate"]}, checkpoint=Checkpoint.from_dict({"step": step}))


def halving(storage: Path) -> Tuner:
    return Tuner(
        climb,
        param_space={"rate": tune.grid_search([6, 5, 4, 3, 2, 1])},
        tune_config=TuneConfig(metric="height", mode="max", scheduler=HyperBandScheduler(max_t=9)),
        run_config=RunConfig(storage_path=str(storage), name="search", verbose=0, engine="inline"),
    )


def test_trial_that_is_to_wait_by_its_first_row_does_not_keep_others_from_starting(tmp_path: Path) -> None:
    killed(tmp_path, "halving", point="before_ack")
    grid = Tuner.restore(tmp_path / "search", climb).fit()
    without_kill = halving(tmp_path / "whole").fit()
    assert [result.metrics["training_iteration"] for result in without_kill] == [9, 3, 1, 1, 1, 1]
    assert [result.metrics["training_iteration"] for result in grid] == [9, 3, 1, 1, 1, 1]
