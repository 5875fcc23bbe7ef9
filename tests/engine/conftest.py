"""What the tests of all engines share; each folder has its own `engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.base import Engine, WorkerGroup
from paceline.testing.engine_tools import placement_in


@pytest.fixture
def start_group(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start groups below the test's directory; whatever happens they are shut down."""
    groups: list[WorkerGroup] = []

    def start(workers: int = 2, **settings: Any) -> WorkerGroup:
        folder = tmp_path / f"group_{len(groups)}"
        groups.append(engine.start_group(placement_in(folder, workers, **settings)))
        return groups[-1]

    yield start
    for group in groups:
        group.shutdown()
