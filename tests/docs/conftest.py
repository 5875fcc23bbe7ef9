from __future__ import annotations

from pathlib import Path

# Importing these sets environment variables. Do it here, so that no single test is blamed for it.
import lightning.fabric  # noqa: F401
import pytest
import sklearn  # noqa: F401
import torch._dynamo  # noqa: F401

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Page and example of a framework run one after the other, with the workers' imports done once for both."""
    places = [place for place, item in enumerate(items) if item.path.parent == HERE]
    in_order = sorted((items[place] for place in places), key=lambda item: item.name.partition("[")[2])
    for place, item in zip(places, in_order, strict=True):
        items[place] = item
