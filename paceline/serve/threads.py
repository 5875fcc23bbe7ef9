"""How many threads a model predicts with.

A few rows are predicted more quickly by one thread than by several, which first have to be woken and then, for a
while, wait at full speed for more, at the cost of everything else on the machine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from paceline.serve.columns import library_of, model_of

if TYPE_CHECKING:
    from paceline.train.predictor import Predictor

MANY_ROWS = 4096


class Threads:
    """Sets the number of threads of a booster to what suits the next batch."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster
        self._set: int | None = None

    def suit(self, rows: int) -> None:
        wanted = 1 if rows < MANY_ROWS else len(os.sched_getaffinity(0))
        if wanted != self._set:
            self._booster.set_param({"nthread": wanted})
            self._set = wanted


def threads_of(predictor: Predictor) -> Threads | None:
    """None for a model whose threads are not ours to set."""
    model = model_of(predictor)
    return Threads(model) if library_of(model) == "xgboost" and hasattr(model, "set_param") else None
