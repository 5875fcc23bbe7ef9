"""The engine of workers on several hosts passes the suite that every engine passes."""

from __future__ import annotations

import pytest

from paceline.engine.base import Engine
from paceline.testing.engine_contract import EngineContract
from tests.engine.remote.engine import AgentsEngine


class TestAgentsOnHosts(EngineContract):
    """Other clocks, other files, other process ids than the driver's."""

    max_workers = 3

    @pytest.fixture
    def engine(self, hosts_engine: AgentsEngine) -> Engine:
        return hosts_engine
