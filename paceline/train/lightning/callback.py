"""ReportCallback: reports the epochs of a Lightning Trainer that a train function runs."""

from __future__ import annotations

import os
import shutil
from typing import Any, ClassVar

from paceline.air.session import report
from paceline.train.lightning.checkpoint import CHECKPOINT_FILE, LightningCheckpoint
from paceline.train.lightning.datasets import end_train_pass, end_validation_pass
from paceline.train.lightning.nothing_left import warn_if_nothing_was_left
from paceline.train.lightning.packages import derived_classes, package_of
from paceline.train.lightning.prepare import check_ranks
from paceline.train.lightning.unsupported import check_checkpoint_io


class EpochReporter:
    """Reports each train epoch, after its validation, with a checkpoint.

        def train_func():
            trainer = lightning.pytorch.Trainer(
                strategy=DDPStrategy(),
                plugins=[LightningEnvironment()],
                callbacks=[ReportCallback()],
                enable_checkpointing=False,
            )
            prepare_trainer(trainer).fit(MyModule(), loader)

    The row has the metrics of `trainer.callback_metrics`, "epoch" and "step". The checkpoint has one file,
    "checkpoint.ckpt", which `trainer.fit(ckpt_path=...)` goes on from.
    """

    CHECKPOINT_NAME: ClassVar[str] = CHECKPOINT_FILE

    def __init__(self) -> None:
        super().__init__()
        self._scratch: str | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        check_ranks(trainer)
        package = package_of(type(trainer))
        assert package is not None
        check_checkpoint_io(trainer.strategy.checkpoint_io, package)
        # What the module logs in its own on_train_epoch_end() is there only for callbacks that are checkpoints.
        last = derived_classes(package).ReportAtEpochEnd
        if not any(isinstance(each, last) for each in trainer.callbacks):
            trainer.callbacks.append(last(self))
        # Sharded strategies write from every rank: to one place, which is rank 0's.
        self._scratch = trainer.strategy.broadcast(os.path.join(os.getcwd(), f".lightning-{os.getpid()}"))

    def report_epoch(self, trainer: Any) -> None:
        """One row and one checkpoint; every rank calls it."""
        assert self._scratch is not None
        end_train_pass(trainer)
        path = os.path.join(self._scratch, self.CHECKPOINT_NAME)
        trainer.save_checkpoint(path, weights_only=False)
        try:
            report(row_of(trainer), LightningCheckpoint._at(path))
        finally:
            if trainer.is_global_zero:
                shutil.rmtree(self._scratch, ignore_errors=True)


class EpochEndReporter:
    """Calls a ReportCallback when everything else of an epoch is done."""

    def __init__(self, reporter: EpochReporter) -> None:
        super().__init__()
        self._reporter = reporter
        self._trained = False
        self._has_trained = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._has_trained = False  # one Trainer may fit several times

    def on_train_batch_start(self, trainer: Any, *arguments: Any) -> None:
        self._trained = self._has_trained = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        end_validation_pass(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._trained:  # otherwise its row came with the checkpoint that this run began from
            self._trained = False
            self._reporter.report_epoch(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._has_trained:
            warn_if_nothing_was_left(trainer)


def row_of(trainer: Any) -> dict[str, Any]:
    """What the module has logged, as plain numbers; its own "epoch" and "step" win."""
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return {"epoch": trainer.current_epoch, "step": trainer.global_step, **logged}
