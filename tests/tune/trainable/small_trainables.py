"""Trainables of the tests; workers import this module, so it imports little."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.air import session
from paceline.tune.trainable import Trainable


def total(config: dict[str, Any], rows: Any, scale: float = 1.0) -> float:
    return float(np.sum(rows)) * scale + config.get("x", 0)


class Total(Trainable):
    def setup(self, config: dict[str, Any], rows: Any = None, scale: float = 1.0) -> None:
        self.value = float(np.sum(rows)) * scale + config.get("x", 0)

    def step(self) -> dict[str, Any]:
        return {"_metric": self.value, "done": True}


def loop(config: dict[str, Any]) -> None:
    session.report({**config, "workers": session.get_world_size()})
