"""Both engines pass one suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.engine.base import Engine, WorkerGroup
from paceline.engine.inline import InlineEngine
from paceline.engine.local.engine import LocalEngine
from paceline.testing.engine_contract import EngineContract


class TestInlineEngine(EngineContract):
    isolated = False

    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        engine = InlineEngine()
        yield engine
        engine.close()

    def test_processes_names_every_rank(self, group: WorkerGroup) -> None:
        """No rank has a process of its own, and the driver must not be taken for one."""
        assert group.processes() == {}


class TestLocalEngine(EngineContract):
    max_workers = 2

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        engine = LocalEngine()
        yield engine
        engine.close()
