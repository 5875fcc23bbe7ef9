"""What the tests of several sources share."""

from __future__ import annotations

import pytest

from paceline.data.sources import lines


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "SMALLEST_BLOCK", 1)
    monkeypatch.setattr(lines, "SEARCH_STEP", 3)
    monkeypatch.setattr(lines, "READ_STEP", 7)
