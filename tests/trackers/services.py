"""The services that tests of whole runs send to: how to make the callback, and how to read back what has arrived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from paceline.testing.tracker_contract import ReadRun
from paceline.trackers import TrackerCallback
from tests.trackers.ledger import LedgerTracker
from tests.trackers.readers import read_comet, read_ledger, read_mlflow, read_wandb

WANDB_QUIET = {"x_disable_stats": True, "disable_git": True, "save_code": False}


class Service(NamedTuple):
    callback: Callable[..., TrackerCallback]
    read: Callable[[Path], list[ReadRun]] = lambda place: []


def _mlflow(place: Path, experiment: str = "climbs") -> TrackerCallback:
    """`place` is a directory, or the address of a server."""
    from paceline.air.integrations.mlflow import MLflowLoggerCallback

    uri = str(place).replace("http:/", "http://") if str(place).startswith("http:") else database(place)
    return MLflowLoggerCallback(uri, experiment_name=experiment)


def _aim(place: Path) -> TrackerCallback:
    from paceline.tune.logger.aim import AimLoggerCallback

    return AimLoggerCallback(str(place))


def _wandb(place: Path) -> TrackerCallback:
    from paceline.air.integrations.wandb import WandbLoggerCallback

    return WandbLoggerCallback("climbs", mode="offline", dir=str(place), settings=WANDB_QUIET)


def _comet(place: Path) -> TrackerCallback:
    from paceline.air.integrations.comet import CometLoggerCallback

    return CometLoggerCallback(online=False, offline_directory=str(place), log_env_details=False)


def database(place: Path) -> str:
    return f"sqlite:///{place / 'mlflow.db'}"


SERVICES = {
    "ledger": Service(lambda place: TrackerCallback(LedgerTracker(place)), read_ledger),
    "mlflow": Service(_mlflow, lambda place: read_mlflow(database(place))),
    "wandb": Service(_wandb, read_wandb),
    "comet": Service(_comet, read_comet),
    "aim": Service(_aim),
}
