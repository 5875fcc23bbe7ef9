"""The oldest path of the functions that write a search space."""

from __future__ import annotations

from paceline.tune.search import sample
from paceline.tune.search.sample import *  # noqa: F403

__all__ = sample.__all__
