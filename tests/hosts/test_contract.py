"""The engine of workers on several hosts passes the suite that every engine passes."""

from __future__ import annotations

import pytest

from paceline.engine.base import Engine
from paceline.testing.engine_contract import EngineContract
from tests.hosts.engine import HostsEngine


class TestHostsEngine(EngineContract):
    max_workers = 2
    ends_detached = False

    @pytest.fixture
    def engine(self, hosts_engine: HostsEngine) -> Engine:
        return hosts_engine
