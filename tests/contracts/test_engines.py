"""The engines of the package, and the one that the guide shows, pass one suite."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air import session
from paceline.engine.base import Engine, WorkerGroup
from paceline.engine.inline import InlineEngine
from paceline.engine.local.engine import LocalEngine
from paceline.testing.elastic_engine import ElasticEngine
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


class TestInlineEngineOfTwo(TestInlineEngine):
    """Ranks share a directory, an environment and what the process uses."""

    max_workers = 2
    test_execute_returns_plain_values_in_rank_order = None
    test_usage_counts_the_processor_time_of_each_rank = None

    def test_ranks_share_the_directory_of_rank_0(self, group: WorkerGroup, tmp_path: Path) -> None:
        assert group.execute(os.getcwd) == [str(tmp_path / "rank_0")] * 2

    def test_the_driver_calls_each_rank(self, group: WorkerGroup) -> None:
        assert group.execute(session.get_world_rank) == [0, 1]
        assert group.execute_each(lambda text: text, [["a"], ["b"]]) == ["a", "b"]


class TestLocalEngine(EngineContract):
    max_workers = 2

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        engine = LocalEngine()
        yield engine
        engine.close()


class TestElasticEngine(EngineContract):
    max_workers = 2

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        engine = ElasticEngine(8)
        yield engine
        engine.close()


class TestEngineOfTheGuide(EngineContract):
    max_workers = 2
    ends_detached = False

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        engine = _engine_of_the_guide()
        yield engine
        engine.close()


def _engine_of_the_guide() -> Any:
    text = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    (program,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "PlainEngine(" in block]
    namespace: dict[str, Any] = {"os": os}
    exec(program.partition("\nengine =")[0], namespace)
    return namespace["PlainEngine"]()
