"""Services that run in a process of their own, or need packages that do not fit beside the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trackers.live.mlflow_server import MLflowServer


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLflowServer]:
    pytest.importorskip("mlflow.server")
    server = MLflowServer(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()
