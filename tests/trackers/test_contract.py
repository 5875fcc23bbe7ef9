"""The contract, for the trackers whose services are files. Aim is in tests/trackers/live."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.testing.tracker_contract import ReadRun, TrackerContract
from paceline.trackers import Tracker
from tests.trackers.ledger import LedgerTracker
from tests.trackers.readers import read_comet, read_ledger, read_mlflow, read_wandb


class TestLedger(TrackerContract):
    def make(self) -> Tracker:
        return LedgerTracker(self.place)

    def read(self) -> list[ReadRun]:
        return read_ledger(self.place)


class TestMLflow(TrackerContract):
    exactly_once = True

    @pytest.fixture(autouse=True)
    def _database(self, make_database: Callable[[Path], str], _own_place: None) -> None:
        self.uri = make_database(self.place / "mlflow.db")

    def make(self) -> Tracker:
        from paceline.trackers.mlflow import MLflowTracker

        return MLflowTracker(self.uri)

    def read(self) -> list[ReadRun]:
        return read_mlflow(self.uri)


@pytest.mark.usefixtures("wandb")
class TestWandb(TrackerContract):
    def make(self) -> Tracker:
        from paceline.trackers.wandb import WandbTracker

        settings = {"x_disable_stats": True, "disable_git": True, "save_code": False}
        return WandbTracker({"project": "climbs", "dir": str(self.place), "settings": settings})

    def read(self) -> list[ReadRun]:
        return read_wandb(self.place)


class TestComet(TrackerContract):
    def make(self) -> Tracker:
        pytest.importorskip("comet_ml")
        from paceline.trackers.comet import CometTracker

        return CometTracker({"offline_directory": str(self.place), "log_env_details": False}, online=False)

    def read(self) -> list[ReadRun]:
        return read_comet(self.place)
