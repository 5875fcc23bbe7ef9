"""Workers started through agents do what workers of every engine do."""

from __future__ import annotations

import pytest

from paceline.engine.base import Engine
from paceline.testing.engine_contract import EngineContract
from tests.engine.remote.engine import AgentsEngine


class TestAgents(EngineContract):
    max_workers = 3

    @pytest.fixture
    def engine(self, engine: AgentsEngine) -> Engine:
        return engine
