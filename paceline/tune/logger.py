"""Old path of the loggers that write a run's result files."""

from paceline.run.callbacks import LoggerCallback
from paceline.run.loggers import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback

__all__ = ["CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback"]
