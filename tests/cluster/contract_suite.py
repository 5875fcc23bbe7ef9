"""The suite that every engine passes, run by test_contract.py inside of a host: `pytest` finds it only by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from paceline.engine.base import Engine, Placement, WorkerGroup
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
    def engine(self, ray_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
        """Every rank is on a host of its own."""
        start_group = ray_engine.start_group

        def start_spread(placement: Placement) -> WorkerGroup:
            return start_group(replace(placement, strategy="STRICT_SPREAD"))

        monkeypatch.setattr(ray_engine, "start_group", start_spread)
        return ray_engine
