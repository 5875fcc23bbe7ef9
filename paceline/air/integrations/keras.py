"""Callbacks of Keras that report: ``ReportCheckpointCallback``, and the older ``Callback``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.train.tensorflow.callback import Callback as Callback
    from paceline.train.tensorflow.callback import ReportCheckpointCallback as ReportCheckpointCallback

__all__ = ["Callback", "ReportCheckpointCallback"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise no_such_name(__name__, name)
    from paceline.train.tensorflow import callback

    return getattr(callback, name)


def __dir__() -> list[str]:
    return __all__
