"""What a worker is told before it calls `hvd.init()`, and what it gives back in the end.

These functions are sent to workers by the backend. The driver imports this module too, so
Horovod is not imported here; it is the train function that chooses a flavour.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.run.spec import TrainFunction
from paceline.train.horovod.keras_support import CORRECTIONS

_FLAVOURS = ("horovod.torch", "horovod.tensorflow")


def enter(environment: Mapping[str, str | None]) -> None:
    """Set this rank's variables; None removes one that would lead elsewhere."""
    leave_horovod()
    CORRECTIONS.install()
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def leave() -> None:
    """End Horovod's threads, unless the train function already did."""
    leave_horovod()
    CORRECTIONS.remove()


@dataclass(frozen=True)
class HorovodFunction(TrainFunction):
    """The user's function. A rank that returns leaves at once, as a process that ends under `horovodrun` does: one that
    still waits for it in a collective operation gets an error instead of waiting for ever."""

    def __call__(self) -> None:
        super().__call__()
        leave_horovod()


def leave_horovod() -> None:
    """Each flavour that is loaded has an engine of its own. A failed run in this same process leaves it running."""
    for name in _FLAVOURS:
        flavour = sys.modules.get(name)
        if flavour is not None and flavour.is_initialized():
            flavour.shutdown()
