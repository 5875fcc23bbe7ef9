"""Libraries of trackers take seconds to import, start helpers and change the environment: all that is shared here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

QUIET = {
    "COMET_INTERNAL_SENTRY_DSN": "",
    "COMET_LOGGING_CONSOLE": "error",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}


@pytest.fixture(scope="session", autouse=True)
def quiet_trackers() -> Iterator[None]:
    """No tracker tells its makers about these tests, or looks for a server of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that MLflow has set up, which takes it seconds."""
    mlflow = pytest.importorskip("mlflow")
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def make_database(empty_database: Path) -> Callable[[Path], str]:
    """The URI of a new database at a path."""

    def make(path: Path) -> str:
        shutil.copy(empty_database, path)
        return f"sqlite:///{path}"

    return make


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """W&B, whose helper process ends with the test."""
    wandb = pytest.importorskip("wandb")
    service = os.environ.get("WANDB_SERVICE")
    yield wandb
    wandb.teardown()
    if service is None:
        os.environ.pop("WANDB_SERVICE", None)
