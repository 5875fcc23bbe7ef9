"""The engine of a Ray cluster passes the suite that every engine passes."""

from __future__ import annotations

import pytest

from paceline.engine.base import Engine
from paceline.testing.engine_contract import EngineContract

pytestmark = pytest.mark.cluster


class TestRayEngine(EngineContract):
    max_workers = 3

    @pytest.fixture
    def engine(self, ray_engine: Engine) -> Engine:
        return ray_engine
