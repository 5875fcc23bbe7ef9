"""Aim, in a repository of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.run.records import FORMAT, Row
from paceline.testing.processes import Driver, fault
from paceline.testing.tracker_contract import ReadRow, ReadRun, TrackerContract
from paceline.trackers import Tracker
from paceline.trackers.values import flat_config
from paceline.train import DataParallelTrainer, RunConfig
from tests.trackers.climbs import ROWS, climb

pytestmark = [pytest.mark.trackers, pytest.mark.timeout(300)]


def read_aim(place: Path) -> list[ReadRun]:
    aim = pytest.importorskip("aim")
    repo = aim.Repo.from_path(str(place))
    try:
        repo._recreate_index()  # which Aim's user interface does
        return [*_runs(repo)]
    finally:
        repo.close()


def _runs(repo: Any) -> Iterator[ReadRun]:
    for run in sorted(repo.iter_runs(), key=lambda run: run.creation_time):
        points: dict[tuple[int, int], dict[str, float]] = {}
        for metric in run.metrics():
            attempt, table = metric.context.to_dict()["attempt"], metric.dataframe()
            for step, value in zip(table["step"], table["value"], strict=True):
                points.setdefault((attempt, int(step)), {})[metric.name] = value
        rows = [ReadRow(attempt, step, values) for (attempt, step), values in sorted(points.items())]
        config = {name: str(value) for name, value in flat_config(run["hparams"]).items()}
        yield ReadRun(run.name, rows, config, run.get("outcome"))


class TestAim(TrackerContract):
    exactly_once = True

    def make(self) -> Tracker:
        from paceline.trackers.aim import AimTracker

        return AimTracker(str(self.place))

    def read(self) -> list[ReadRun]:
        return read_aim(self.place)


def test_a_killed_driver_and_a_restore_leave_one_run_with_each_row_once(tmp_path: Path) -> None:
    from paceline.tune.logger.aim import AimLoggerCallback

    place, storage, gate = tmp_path / "repo", tmp_path / "results", tmp_path / "gate"
    place.mkdir()
    program = ["-m", "tests.trackers.climbs", "aim", str(place), str(storage), str(gate)]
    env = {**fault("after_tracker_send", rank="driver"), "PYTHONPATH": str(Path(__file__).parents[3])}
    with Driver(program, output=tmp_path / "driver.txt", env=env) as driver:
        assert driver.wait(120) == -9, driver.text()
    gate.touch()
    (run,) = (path.parent for path in storage.glob("climbs/*/journal.jsonl"))
    result = DataParallelTrainer.restore(
        str(run),
        train_loop_per_worker=climb,
        run_config=RunConfig(callbacks=[AimLoggerCallback(str(place))], verbose=0),
    ).fit()
    assert result.warnings == []
    (found,) = read_aim(place)
    assert found.outcome == "finished"
    written = [record for record in FORMAT.read(run / "journal.jsonl") if isinstance(record, Row)]
    assert [(row.attempt, row.step) for row in found.rows] == sorted((row.attempt, row.index) for row in written)
    assert written[-1].index == ROWS


def test_a_search_has_a_run_for_each_trial_in_the_directory_of_the_search(tmp_path: Path) -> None:
    from paceline.tune.logger.aim import AimLoggerCallback

    results = tune.Tuner(
        climb,
        param_space={"rows": tune.grid_search([1, 2])},
        run_config=RunConfig(
            name="climbs", storage_path=str(tmp_path), callbacks=[AimLoggerCallback(metrics=["height"])], verbose=0
        ),
    ).fit()
    found = read_aim(Path(results.experiment_path))
    assert sorted(len(run.rows) for run in found) == [1, 2]
    assert {name for run in found for row in run.rows for name in row.values} == {"height"}
