from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def processes_of_failed_predictions_end() -> Iterator[None]:
    """The traceback of an error refers to the dataset, and so to its processes, until garbage is collected.

    That takes a while where large libraries are loaded: only for tests that fail on purpose in other processes.
    """
    yield
    gc.collect()
