from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.remote.group import RemoteGroup
from paceline.testing.engine_tools import placement_in
from tests.engine.remote.engine import AgentsEngine

StartGroup = Callable[..., RemoteGroup]


@pytest.fixture(scope="module")
def engine() -> Iterator[AgentsEngine]:
    engine = AgentsEngine()
    yield engine
    engine.close()


@pytest.fixture
def start_group(engine: AgentsEngine, tmp_path: Path) -> Iterator[StartGroup]:
    """Start groups below the test's directory; whatever happens they are shut down."""
    groups: list[RemoteGroup] = []

    def start(workers: int = 2, **settings: Any) -> RemoteGroup:
        folder = tmp_path / f"group_{len(groups)}"
        groups.append(engine.start_group(placement_in(folder, workers, **settings)))
        return groups[-1]

    yield start
    for group in groups:
        group.shutdown()
