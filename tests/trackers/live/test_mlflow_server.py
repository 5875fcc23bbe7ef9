"""MLflow as teams use it: a server, read back through its REST API. It is killed, and so are drivers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.run.records import FORMAT, Row
from paceline.testing.processes import Driver, fault, wait_for
from paceline.testing.tracker_contract import ReadRun, TrackerContract
from paceline.trackers import Tracker
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from tests.trackers.climbs import ROWS, climb
from tests.trackers.live.mlflow_server import ReadableServer

pytestmark = [pytest.mark.trackers, pytest.mark.timeout(400)]

MOST_ROWS = 100_000
_numbers = itertools.count()


class TestServer(TrackerContract):
    exactly_once = True

    @pytest.fixture(autouse=True)
    def _experiment(self, mlflow_server: ReadableServer) -> None:
        self.server = mlflow_server
        self.experiment = f"contract {next(_numbers)}"

    def make(self) -> Tracker:
        from paceline.trackers.mlflow import MLflowTracker

        return MLflowTracker(self.server.uri, experiment_name=self.experiment)

    def read(self) -> list[ReadRun]:
        return self.server.runs(self.experiment)


def climb_on(config: Mapping[str, Any]) -> None:
    """Report until the gate opens, twenty times a second."""
    gate, pace = Path(config["gate"]), threading.Event()
    for index in range(1, MOST_ROWS):
        train.report({"height": 10.0 * index})
        if gate.exists():
            return
        pace.wait(0.05)


def written(storage: Path) -> list[tuple[int, int]]:
    """(attempt, index) of each row in the journal of the only run."""
    paths = [*storage.glob("*/*/journal.jsonl")]
    records = FORMAT.read(paths[0]) if paths else iter(())
    return [(record.attempt, record.index) for record in records if isinstance(record, Row) and record.rank == 0]


def test_training_goes_on_while_the_server_is_dead_and_all_rows_arrive(
    mlflow_server: ReadableServer, tmp_path: Path
) -> None:
    from paceline.air.integrations.mlflow import MLflowLoggerCallback

    gate, problems = tmp_path / "gate", list[BaseException]()

    def kill_and_bring_back() -> None:
        try:
            wait_for(lambda: arrived(mlflow_server, "killed server"), "the first rows in MLflow", timeout=120)
            mlflow_server.kill()
            before = len(written(tmp_path))
            wait_for(lambda: len(written(tmp_path)) > before + 60, "rows that are reported without a server")
            mlflow_server.start()
        except BaseException as error:
            problems.append(error)
        finally:
            gate.touch()

    helper = threading.Thread(target=kill_and_bring_back)
    helper.start()
    callback = MLflowLoggerCallback(mlflow_server.uri, experiment_name="killed server")
    callback.wait_at_end_s = callback.wait_when_down_s = 120.0
    result = DataParallelTrainer(
        climb_on,
        train_loop_config={"gate": str(gate)},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path), callbacks=[callback], verbose=0),
    ).fit()
    helper.join()
    assert problems == []
    (warning,) = result.warnings
    assert "is not accepting data" in warning
    (found,) = mlflow_server.runs("killed server")
    assert [(row.attempt, row.step) for row in found.rows] == written(tmp_path)
    assert found.outcome == "finished"


def arrived(server: ReadableServer, experiment: str) -> bool:
    try:
        return any(run.rows for run in server.runs(experiment))
    except OSError:  # there is no such experiment yet
        return False


@pytest.mark.parametrize("moment", ["after_tracker_open", "after_tracker_send"])
def test_a_killed_driver_and_a_restore_leave_one_run_with_each_row_once(
    moment: str, mlflow_server: ReadableServer, tmp_path: Path
) -> None:
    from paceline.air.integrations.mlflow import MLflowLoggerCallback

    storage, gate = tmp_path / "results", tmp_path / "gate"
    program = ["-m", "tests.trackers.climbs", "mlflow", mlflow_server.uri, str(storage), str(gate), moment]
    env = {**fault(moment, rank="driver"), "PYTHONPATH": str(Path(__file__).parents[3])}
    with Driver(program, output=tmp_path / "driver.txt", env=env) as driver:
        assert driver.wait(120) == -9, driver.text()
    gate.touch()
    (run,) = (path.parent for path in storage.glob("climbs/*/journal.jsonl"))
    callback = MLflowLoggerCallback(mlflow_server.uri, experiment_name=moment)
    result = DataParallelTrainer.restore(
        str(run), train_loop_per_worker=climb, run_config=RunConfig(callbacks=[callback], verbose=0)
    ).fit()
    assert result.warnings == []
    (found,) = mlflow_server.runs(moment)
    assert found.outcome == "finished"
    assert [(row.attempt, row.step) for row in found.rows] == written(storage)
    assert found.rows[-1].step == ROWS
