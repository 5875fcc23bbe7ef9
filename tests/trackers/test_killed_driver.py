"""A driver is killed in the middle of tracking, and the run is restored: one tracker run, and no row is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.run.records import FORMAT, Row
from paceline.testing.processes import Driver, fault
from paceline.train import DataParallelTrainer, RunConfig
from tests.trackers.climbs import ROWS, climb
from tests.trackers.services import SERVICES

EXACTLY_ONCE = ("ledger", "mlflow", "wandb")


@pytest.mark.parametrize(
    ("service", "moment"),
    [
        ("ledger", "after_tracker_open"),
        ("ledger", "after_tracker_send"),
        ("mlflow", "after_tracker_open"),
        ("mlflow", "after_tracker_send"),
        ("wandb", "after_tracker_send"),
        ("comet", "after_tracker_send"),
    ],
)
def test_one_tracker_run_continues(
    service: str, moment: str, tmp_path: Path, make_database: Callable[[Path], str], wandb: object
) -> None:
    place, storage, gate = tmp_path / "service", tmp_path / "results", tmp_path / "gate"
    place.mkdir()
    if service == "mlflow":
        make_database(place / "mlflow.db")
    program = ["-m", "tests.trackers.climbs", service, str(place), str(storage), str(gate)]
    env = {**fault(moment, rank="driver"), "PYTHONPATH": str(Path(__file__).parents[2])}
    with Driver(program, output=tmp_path / "driver.txt", env=env) as driver:
        assert driver.wait() == -9, driver.text()
    gate.touch()
    (run,) = (path.parent for path in storage.glob("climbs/*/journal.jsonl"))

    callback = SERVICES[service].callback(place)
    restored = DataParallelTrainer.restore(
        str(run), train_loop_per_worker=climb, run_config=RunConfig(callbacks=[callback], verbose=0)
    )
    result = restored.fit()

    # The killed driver's worker may still be ending when the run is restored. That is nothing to do with the tracker.
    assert [text for text in result.warnings if "left behind" not in text] == []
    (found,) = SERVICES[service].read(place)
    assert found.outcome == "finished"
    arrived = [(row.attempt, row.step) for row in found.rows]
    written = [record for record in FORMAT.read(run / "journal.jsonl") if isinstance(record, Row)]
    assert written[-1].index == ROWS
    assert set(arrived) == {(row.attempt, row.index) for row in written}
    if service in EXACTLY_ONCE:
        assert len(arrived) == len(set(arrived))
