"""Nested values on one level, as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.air.metrics import flattened
from paceline.air.secrets import starred


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a/b": 1}``; a masked secret is ``***`` under its own name."""
    return flattened(starred(values))
