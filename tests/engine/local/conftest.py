from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.engine.base import WorkerGroup
from paceline.engine.local.engine import LocalEngine

StartGroup = Callable[..., WorkerGroup]


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    engine = LocalEngine()
    yield engine
    engine.close()


@pytest.fixture
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The drivers of one test only."""
    parent = tmp_path / "runtime"
    parent.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(parent))
    return parent / "paceline"
