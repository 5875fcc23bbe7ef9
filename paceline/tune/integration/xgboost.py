"""Callbacks of XGBoost that report from inside of a function trainable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.compat.tune_integration.xgboost import TuneReportCallback as TuneReportCallback
    from paceline.compat.tune_integration.xgboost import TuneReportCheckpointCallback as TuneReportCheckpointCallback

__path__: list[str] = []  # so that import statements repeat the advice, see air/absent.py
__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]
_ADVICE = {"TuneCallback": "derive from TuneReportCallback, or from TrainingCallback and call session.report()"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise no_such_name(__name__, name, _ADVICE)
    from paceline.compat.tune_integration import xgboost

    return getattr(xgboost, name)


def __dir__() -> list[str]:
    return __all__
