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
    """Gives a booster as many threads as suit its next batch."""

    def __init__(self, booster: Any, *, by_argument: bool) -> None:
        self._booster = booster
        self._by_argument = by_argument
        self._set: int | None = None

    def arguments(self, rows: int) -> dict[str, int]:
        """Set the number of threads, or give it as arguments for `predict`."""
        wanted = 1 if rows < MANY_ROWS else len(os.sched_getaffinity(0))
        if self._by_argument:
            return {"num_threads": wanted}
        if wanted != self._set:
            self._booster.set_param({"nthread": wanted})
            self._set = wanted
        return {}


def threads_of(predictor: Predictor) -> Threads | None:
    """None for a model whose threads are not ours to set."""
    model = model_of(predictor)
    library = library_of(model)
    if library not in ("xgboost", "lightgbm") or not type(predictor).__module__.startswith("paceline."):
        return None
    return Threads(model, by_argument=library == "lightgbm")
