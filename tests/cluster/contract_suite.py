"""The suite that every engine passes, run by test_contract.py inside of a host: `pytest` finds it only by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.engine.base import Engine
from paceline.testing.engine_contract import EngineContract


@pytest.fixture(scope="module")
def ray_engine() -> Iterator[Engine]:
    from paceline.engine.ray.engine import RayEngine

    engine = RayEngine(address="auto")
    yield engine
    engine.close()


class TestRayEngineOnHosts(EngineContract):
    max_workers = 3

    @pytest.fixture
    def engine(self, ray_engine: Engine) -> Engine:
        return ray_engine
