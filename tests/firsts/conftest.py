"""The acceptance tests of what paceline promises and others do not. Each file is named after its promise."""

from __future__ import annotations

from tests.faults.conftest import lab

__all__ = ["lab"]
