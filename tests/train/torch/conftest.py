from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
import torch._dynamo  # noqa: F401  (sets variables when it is imported, which no test shall be blamed for)

from paceline.air import session
from paceline.train.torch import loop


class InstallSession(Protocol):
    def __call__(self, world_rank: int = 0, world_size: int = 1) -> Any: ...


@pytest.fixture
def install_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallSession]:
    """Make this process look like a worker of the given rank, connected to peers that are not there."""
    monkeypatch.setattr(loop, "are_connected", lambda: True)

    def install(world_rank: int = 0, world_size: int = 1) -> Any:
        fake: Any = SimpleNamespace(
            world_rank=world_rank, world_size=world_size, clock=None, loader_epochs=None, is_elastic=False
        )
        session.install(fake)
        return fake

    yield install
    session.install(None)
