"""Services that run in a process of their own, or need packages that do not fit beside the others."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.trackers.live.mlflow_server import ReadableServer


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadableServer]:
    pytest.importorskip("mlflow.server")
    server = ReadableServer(tmp_path_factory.mktemp("server"), sys.executable)
    server.start()
    yield server
    server.kill()
