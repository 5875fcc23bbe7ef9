"""What whole searches are run on."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

import paceline


@pytest.fixture(scope="module")
def two_cpus() -> Iterator[None]:
    """A pool of two, whatever the machine really has."""
    paceline.shutdown()
    paceline.init(num_cpus=2)
    yield
    paceline.shutdown()


@pytest.fixture
def unseeded() -> Iterator[None]:
    """Global generators that nobody has seeded, as in a new process."""
    numpy_before, before = np.random.get_bit_generator(), random.getstate()
    np.random.set_bit_generator(np.random.MT19937())
    random.seed()
    yield
    np.random.set_bit_generator(numpy_before)
    random.setstate(before)
