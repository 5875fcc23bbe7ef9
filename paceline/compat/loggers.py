"""Loggers of one trial, as they were before logger callbacks: made with a configuration and a directory."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from paceline.run.callbacks import LoggerCallback, RowLogger
from paceline.run.loggers import CSVLoggerCallback, JsonLoggerCallback
from paceline.run.spec import Trial
from paceline.run.tensorboard import TBXLoggerCallback

__all__ = [
    "CSVLogger",
    "JsonLogger",
    "LegacyLoggerCallback",
    "Logger",
    "NoopLogger",
    "TBXLogger",
    "UnifiedLogger",
    "pretty_print",
]


class Logger(ABC):
    """Writes down the results of one trial. Derive from it, and define `on_result`."""

    def __init__(self, config: Mapping[str, Any], logdir: str, trial: Trial | None = None) -> None:
        self.config = dict(config)
        self.logdir = logdir
        self.trial = trial
        self._init()

    def _init(self) -> None:  # noqa: B027  # optional
        """Prepare, instead of in `__init__`."""

    @abstractmethod
    def on_result(self, result: dict[str, Any]) -> None:
        """A row of the trial."""

    def update_config(self, config: dict[str, Any]) -> None:  # noqa: B027  # optional
        """The trial continues with another configuration."""

    def close(self) -> None:  # noqa: B027  # optional
        """The trial has ended."""

    def flush(self) -> None:  # noqa: B027  # optional
        """Hand everything to the operating system."""


class NoopLogger(Logger):
    """Writes nothing."""

    def on_result(self, result: dict[str, Any]) -> None:
        pass


class _FileLogger(Logger):
    """Writes the files of one of the logger callbacks."""

    writer: ClassVar[type[RowLogger]]

    def _init(self) -> None:
        self._writer = self.writer()
        self._of = self.trial or Trial(uuid.uuid4().hex[:8], "trial", self.logdir, "", config=self.config)
        self._writer.log_trial_start(self._of)

    def on_result(self, result: dict[str, Any]) -> None:
        self._writer.log_rows(self._of, [result])
        self._writer.flush()

    def update_config(self, config: dict[str, Any]) -> None:
        self.config = self._of.config = dict(config)
        self._writer.log_trial_start(self._of)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.log_trial_end(self._of)


class JsonLogger(_FileLogger):
    """Writes `result.json` and `params.json`."""

    writer = JsonLoggerCallback


class CSVLogger(_FileLogger):
    """Writes `progress.csv`."""

    writer = CSVLoggerCallback


class TBXLogger(_FileLogger):
    """Writes event files for TensorBoard."""

    writer = TBXLoggerCallback


class UnifiedLogger(Logger):
    """Several loggers as one; JSON, CSV and TensorBoard unless `loggers` lists others."""

    def __init__(
        self,
        config: Mapping[str, Any],
        logdir: str,
        trial: Trial | None = None,
        loggers: Iterable[type[Logger]] | None = None,
    ) -> None:
        self._classes = (JsonLogger, CSVLogger, TBXLogger) if loggers is None else tuple(loggers)
        super().__init__(config, logdir, trial)

    def _init(self) -> None:
        self._loggers = [each(self.config, self.logdir, self.trial) for each in self._classes]

    def on_result(self, result: dict[str, Any]) -> None:
        for logger in self._loggers:
            logger.on_result(result)

    def update_config(self, config: dict[str, Any]) -> None:
        for logger in self._loggers:
            logger.update_config(config)

    def flush(self) -> None:
        for logger in self._loggers:
            logger.flush()

    def close(self) -> None:
        for logger in self._loggers:
            logger.close()


class LegacyLoggerCallback(LoggerCallback):
    """Makes one logger of each class for every trial: ``RunConfig(callbacks=[LegacyLoggerCallback([MyLogger])])``."""

    def __init__(self, logger_classes: Iterable[type[Logger]]) -> None:
        self._classes = tuple(logger_classes)
        self._loggers: dict[str, list[Logger]] = {}

    def log_trial_start(self, trial: Trial) -> None:
        if loggers := self._loggers.get(trial.trial_id):
            for logger in loggers:
                logger.update_config(trial.config)
        else:
            self._loggers[trial.trial_id] = [each(trial.config, trial.logdir, trial) for each in self._classes]

    def log_trial_save(self, trial: Trial) -> None:
        for logger in self._loggers.get(trial.trial_id, ()):
            logger.flush()

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        for logger in self._loggers.get(trial.trial_id, ()):
            logger.on_result(result)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        for logger in self._loggers.pop(trial.trial_id, ()):
            logger.close()


def pretty_print(result: Mapping[str, Any], exclude: Collection[str] | None = None) -> str:
    """A result as lines of YAML, without its configuration, the keys in `exclude` and values that are None."""
    left_out = {"config", *(exclude or ())}
    shown = {name: value for name, value in result.items() if name not in left_out and value is not None}
    return "\n".join(_lines(shown)) + "\n"


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterable[str]:
    for name, value in sorted(values.items(), key=lambda item: str(item[0])):
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {value}"
