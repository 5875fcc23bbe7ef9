"""ReportCallback: reports the checkpoints of a `transformers.Trainer` that a train function makes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from paceline.air import session
from paceline.train.huggingface.transformers.checkpoint import (
    FILES_FOLDER,
    TransformersCheckpoint,
    check_that_all_is_kept,
    saved_checkpoint,
)

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class ReportCallback(TrainerCallback):
    """Reports whenever the trainer saves: the newest value of everything it has logged, and the checkpoint.

        trainer = transformers.Trainer(model, args, ..., callbacks=[ReportCallback()])

    The trainer's files are in the folder "checkpoint" of the reported one: to go on from it,
    `trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint"))`. The trainer's own copies stay.
    """

    CHECKPOINT_NAME = FILES_FOLDER

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        check_that_all_is_kept()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        metrics: dict[str, Any] = {}
        for logged in state.log_history:
            metrics.update(logged)
        saved = saved_checkpoint(args, state)
        active = session.active()
        if active.world_rank > 0 and not active.keeps_all_ranks:
            # It only counts: rank 0's files are kept.
            session.report(metrics, TransformersCheckpoint.from_directory(saved))
            return
        with TemporaryDirectory(prefix="report-", dir=saved.parent) as folder:
            shutil.copytree(saved, Path(folder, self.CHECKPOINT_NAME), copy_function=_link_or_copy)
            session.report(metrics, TransformersCheckpoint.from_directory(folder))


def _link_or_copy(source: str, target: str) -> None:
    """A saved file is not written to again, so a second name for it is enough where there can be one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
