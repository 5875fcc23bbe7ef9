from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from paceline.engine.base import WorkerGroup
from paceline.engine.local.engine import LocalEngine

StartGroup = Callable[..., WorkerGroup]


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    engine = LocalEngine()
    yield engine
    engine.close()
