"""A driver that dies between the commit of a checkpoint and the decision on its row: a restore decides on it."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, RunConfig, session
from paceline.testing.processes import Driver, fault
from paceline.tune import Tuner
from paceline.tune.experiment.records import RowSeen, SearchRecords
from tests.faults.cases import mostly_slow


def count(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(done + 1, 8):
        session.report({"enough": int(step == 4)}, checkpoint=Checkpoint.from_dict({"step": step}))


def search(storage: Path) -> Tuner:
    return Tuner(count, run_config=RunConfig(storage_path=str(storage), name="search", verbose=0, stop={"enough": 1}))


@pytest.mark.parametrize(
    ("point", "times"), mostly_slow([("before_ack", 4), ("after_commit_rename", 4)], everyday=[("before_ack", 4)])
)
def test_row_of_the_newest_checkpoint_is_decided_on(tmp_path: Path, point: str, times: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            from pathlib import Path
            from tests.faults.test_search_late_decisions import search
            search(Path(sys.argv[1])).fit()
        """)
    )
    env = {**fault(point, rank="driver", times=times), "PYTHONPATH": str(Path(__file__).parents[2])}
    with Driver([str(script), str(tmp_path)], output=tmp_path / "driver.txt", env=env) as driver:
        assert driver.wait() == -signal.SIGKILL, driver.text()
    (journal,) = (tmp_path / "search").glob("experiment-*.jsonl")
    assert not [record for record in SearchRecords(journal).all if isinstance(record, RowSeen)]
    (result,) = Tuner.restore(tmp_path / "search", count).fit()
    assert result.error is None
    assert result.metrics["training_iteration"] == 4
