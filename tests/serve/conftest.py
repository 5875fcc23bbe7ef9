"""What the tests of serving share beside servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pytest


@pytest.fixture
def memory() -> Iterator[Any]:
    """A storage that is reached by URIs."""
    yield fsspec.filesystem("memory")
    fsspec.filesystem("memory").rm("/", recursive=True)
