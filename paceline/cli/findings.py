"""One line of what ``paceline doctor`` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    part: str
    """Which heading it belongs to."""
    check: str
    text: str
    level: Level = "ok"
    advice: str = ""
    """What to do about it."""
