"""The loggers that are on by default, one file each; `default_loggers` chooses them."""

from __future__ import annotations

import importlib.util

from paceline.run.callbacks import RowLogger
from paceline.run.loggers.csv import CSVLoggerCallback
from paceline.run.loggers.json import JsonLoggerCallback
from paceline.run.loggers.tensorboard import TBXLoggerCallback

__all__ = ["CSVLoggerCallback", "JsonLoggerCallback", "TBXLoggerCallback", "default_loggers"]


def default_loggers() -> list[RowLogger]:
    """JSON and CSV always; TensorBoard files for those who have installed tensorboardX."""
    loggers: list[RowLogger] = [JsonLoggerCallback(), CSVLoggerCallback()]
    if importlib.util.find_spec("tensorboardX") is not None:
        loggers.append(TBXLoggerCallback())
    return loggers
