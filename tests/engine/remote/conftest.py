from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from paceline.engine.remote.group import RemoteGroup
from tests.engine.remote.engine import AgentsEngine

StartGroup = Callable[..., RemoteGroup]


@pytest.fixture(scope="module")
def engine() -> Iterator[AgentsEngine]:
    engine = AgentsEngine()
    yield engine
    engine.close()
