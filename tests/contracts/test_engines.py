"""The engines of the package, and the one that the guide shows, pass one suite."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
