"""Callbacks by which a Lightning Trainer inside of a function trainable reports.

They are callbacks of the Lightning package (`lightning` or `pytorch_lightning`) that is in use where they are made.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Self

from paceline.air import session
from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError
from paceline.train.lightning.packages import lightning, package_in_use
from paceline.train.rounds import names_to_keys

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]

Metrics = str | Sequence[str] | Mapping[str, str] | None


class TuneReportCallback:
    """Reports what the module has logged at each event of `on`, which are hooks of Lightning without "on_".

    `metrics` chooses what is reported: None for everything, one name, a list of them, or a dict of new names to those
    that the module logs. Lightning's sanity check before training reports nothing.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        kind: Any = cls
        made: Self = object.__new__(_as_callback(kind, package_in_use()))
        return made

    def __init__(self, metrics: Metrics = None, on: str | Sequence[str] = "validation_end") -> None:
        super().__init__()
        self._chosen = names_to_keys(metrics, example="val_loss")
        for event in [on] if isinstance(on, str) else on:
            self._listen(event)

    def _listen(self, event: str) -> None:
        hook = f"on_{event}"
        before = getattr(self, hook, None)
        if before is None:
            raise ConfigError(f'on is {event!r}: name a hook of Lightning without its "on_", such as "validation_end".')

        def report(trainer: Any, *arguments: Any, **keywords: Any) -> None:
            before(trainer, *arguments, **keywords)
            if not trainer.sanity_checking:
                self._report(trainer, self._row(trainer.callback_metrics))

        setattr(self, hook, report)

    def _report(self, trainer: Any, row: dict[str, Any]) -> None:
        session.report(row)

    def _row(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {name: name for name in logged} if self._chosen is None else self._chosen
        if lacking := [key for key in chosen.values() if key not in logged]:
            warn_at_users_line(
                f"{type(self).__name__}(metrics=...): the module has not logged {', '.join(lacking)}. Log them with "
                f"self.log(); so far there is {', '.join(logged) or 'nothing'}."
            )
        return {name: logged[key].item() for name, key in chosen.items() if key in logged}


class TuneReportCheckpointCallback(TuneReportCallback):
    """Reports at each event of `on`, with a checkpoint that has Lightning's file under the name `filename`."""

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        on: str | Sequence[str] = "validation_end",
        save_checkpoints: bool = True,
    ) -> None:
        super().__init__(metrics, on)
        self._filename = filename
        self._save_checkpoints = save_checkpoints

    def _report(self, trainer: Any, row: dict[str, Any]) -> None:
        if not self._save_checkpoints:
            session.report(row)
            return
        with tempfile.TemporaryDirectory(prefix="paceline-lightning-") as directory:
            trainer.save_checkpoint(os.path.join(directory, self._filename))
            session.report(row, checkpoint=Checkpoint.from_directory(directory))


@functools.cache
def _as_callback(cls: Any, package: str) -> Any:
    base = lightning(package).callbacks.Callback
    return cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {"__module__": cls.__module__})
