"""Fixtures for pytest. Put this line into your conftest.py: ``pytest_plugins = ["paceline.testing.fixtures"]``.

There is no entry point: pytest would load it in every session on the machine, also where nobody trains anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from paceline.testing.chaos_kit import Chaos
from paceline.testing.chaos_kit import chaos as inject


@pytest.fixture
def chaos() -> Iterator[Callable[..., Chaos]]:
    """`chaos(kill={"rank": 1, "step": 7})` injects faults until the test ends; by then they must have happened."""
    with ExitStack() as stack:

        def until_the_end(**arguments: Any) -> Chaos:
            return stack.enter_context(inject(**arguments))

        yield until_the_end
