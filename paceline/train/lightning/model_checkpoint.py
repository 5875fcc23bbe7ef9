"""ReportingModelCheckpoint: Lightning's ModelCheckpoint, whose files become checkpoints of the run."""

from __future__ import annotations

from typing import Any

from paceline.air import session as session_slot
from paceline.run.session import Session
from paceline.train.lightning.callback import row_of
from paceline.train.lightning.checkpoint import LightningCheckpoint


class SaveReporter:
    """Reports each train epoch, after its validation; when Lightning has saved, the row has the checkpoint.

    A save within an epoch is a row of its own. As a checkpoint callback it is called last, after the module.
    """

    dirpath: str | None
    _saved: str | None = None
    """What was saved since the last report. Every rank knows the name; the file is rank 0's."""

    def on_train_batch_end(self, trainer: Any, *arguments: Any, **keywords: Any) -> None:
        super().on_train_batch_end(trainer, *arguments, **keywords)  # type: ignore[misc]
        self._report_within_epoch(trainer)

    def on_validation_end(self, trainer: Any, *arguments: Any) -> None:
        super().on_validation_end(trainer, *arguments)  # type: ignore[misc]
        self._report_within_epoch(trainer)

    def on_train_epoch_end(self, trainer: Any, *arguments: Any) -> None:
        super().on_train_epoch_end(trainer, *arguments)  # type: ignore[misc]
        self._report(trainer)

    def on_train_end(self, trainer: Any, *arguments: Any) -> None:
        super().on_train_end(trainer, *arguments)  # type: ignore[misc]
        session = session_slot.current()
        if self._saved is not None and isinstance(session, Session):
            session.add_checkpoint(LightningCheckpoint._at(self._saved))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Which were the best so far is known after a failure; another run's best are not this one's."""
        if state_dict.get("dirpath") == self.dirpath:
            super().load_state_dict(state_dict)  # type: ignore[misc]

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        super()._save_checkpoint(trainer, filepath)  # type: ignore[misc]
        self._saved = filepath

    def _report_within_epoch(self, trainer: Any) -> None:
        ends = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if self._saved is not None and not ends:  # otherwise the row of the epoch follows, and takes it along
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        saved, self._saved = self._saved, None
        session_slot.report(row_of(trainer), None if saved is None else LightningCheckpoint._at(saved))
