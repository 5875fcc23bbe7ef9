"""What whole searches are run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import paceline


@pytest.fixture(scope="module")
def two_cpus() -> Iterator[None]:
    """A pool of two, whatever the machine really has."""
    paceline.shutdown()
    paceline.init(num_cpus=2)
    yield
    paceline.shutdown()
