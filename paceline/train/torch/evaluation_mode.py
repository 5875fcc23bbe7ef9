"""Evaluation mode for a while, for as many as predict with a model at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass
class _UnderWay:
    """The predictions of one model."""

    in_training: list[torch.nn.Module]
    """The parts that were in training mode before the first of them."""
    count: int = 0


_models: dict[int, _UnderWay] = {}
"""By the id of the model, which is alive as long as it predicts."""
_lock = threading.Lock()


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Each part of the model gets back the mode that it had, when the last thread that predicts is done."""
    with _lock:
        under_way = _models.get(id(model))
        if under_way is None:
            under_way = _models[id(model)] = _UnderWay([module for module in model.modules() if module.training])
            for module in under_way.in_training:
                module.training = False
        under_way.count += 1
    try:
        yield
    finally:
        with _lock:
            under_way.count -= 1
            if under_way.count == 0:
                for module in under_way.in_training:
                    module.training = True
                del _models[id(model)]
