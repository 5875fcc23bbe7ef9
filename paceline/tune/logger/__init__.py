"""Old path of the loggers that write a run's result files, and of those from before logger callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name
from paceline.run.callbacks import LoggerCallback
from paceline.run.loggers import CSVLoggerCallback, JsonLoggerCallback
from paceline.run.tensorboard import TBXLoggerCallback

if TYPE_CHECKING:
    from paceline.compat.loggers import CSVLogger as CSVLogger
    from paceline.compat.loggers import JsonLogger as JsonLogger
    from paceline.compat.loggers import LegacyLoggerCallback as LegacyLoggerCallback
    from paceline.compat.loggers import Logger as Logger
    from paceline.compat.loggers import NoopLogger as NoopLogger
    from paceline.compat.loggers import TBXLogger as TBXLogger
    from paceline.compat.loggers import UnifiedLogger as UnifiedLogger
    from paceline.compat.loggers import pretty_print as pretty_print

_OF_ONE_TRIAL = (
    *("CSVLogger", "JsonLogger", "LegacyLoggerCallback", "Logger", "NoopLogger", "TBXLogger", "UnifiedLogger"),
    "pretty_print",
)
_ADVICE = {
    "AimLoggerCallback": "write `from paceline.tune.logger.aim import AimLoggerCallback`",
    "DEFAULT_LOGGERS": "a run writes its rows as JSON, CSV and for TensorBoard by itself: name only your own callbacks",
}

__all__ = [
    "CSVLoggerCallback",
    "JsonLoggerCallback",
    "LoggerCallback",
    "TBXLoggerCallback",
    *_OF_ONE_TRIAL,
]


def __getattr__(name: str) -> Any:
    if name not in _OF_ONE_TRIAL:
        raise no_such_name(__name__, name, _ADVICE)
    from paceline.compat import loggers

    return getattr(loggers, name)


def __dir__() -> list[str]:
    return __all__
