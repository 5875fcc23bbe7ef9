"""ReportCallback: reports the checkpoints of a `transformers.Trainer` that a train function makes."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from paceline.air import session
from paceline.air.errors import StopTraining
from paceline.train.huggingface.transformers.checkpoint import (
    FILES_FOLDER,
    TransformersCheckpoint,
    check_that_all_is_kept,
    saved_checkpoint,
)
from paceline.train.huggingface.transformers.training_arguments import check_rounded_steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from paceline.train.huggingface.transformers.datasets import WorkerRows


class ReportCallback(TrainerCallback):
    """Reports whenever the trainer saves: the newest value of everything it has logged, and the checkpoint. The trainer
    saves by its own strategy, and when the run asks for it (`train.should_checkpoint()`).

        trainer = transformers.Trainer(model, args, ..., callbacks=[ReportCallback()])

    The trainer's files are in the folder "checkpoint" of the reported one: to go on from it,
    `trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint"))`. The trainer's own copies stay.
    """

    CHECKPOINT_NAME = FILES_FOLDER

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        check_that_all_is_kept()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if session.active().should_checkpoint():
            control.should_save = True

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        _now_it_saves(control)

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


def _now_it_saves(control: TrainerControl) -> None:
    """The trainer evaluates before it saves: only what comes after the evaluation is the cost of the checkpoint."""
    if control.should_save:
        session.active().snapshot_begins()


def _link_or_copy(source: str, target: str) -> None:
    """A saved file is not written to again, so a second name for it is enough where there can be one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


# -- what a TransformersTrainer reports ------------------------------------------------------------


class Reporter(TrainerCallback):
    """Reports each step that is logged, with the evaluation and the checkpoint of that step. The run may ask for a
    checkpoint of any step.

    The last one waits for the end of the training, whose figures (train_runtime, train_loss, ...) go with it.
    The state at the end is always saved. When the run is stopped, the training ends as if it had been its last step,
    so that there is a checkpoint of it; `stopped` is then what is to be raised.
    """

    def __init__(self, rows: WorkerRows | None, evaluation_sets: int = 1) -> None:
        self._evaluation_sets = evaluation_sets
        self._awaited = 0
        """Evaluations of this step that have not ended."""
        self.stopped: StopTraining | None = None
        self.after_first_step: Callable[[], None] | None = None
        self._rows = rows
        self._row: dict[str, Any] = {}
        self._saved: Path | None = None
        self._saved_step: int | None = None
        self._reported: dict[str, Any] = {}
        self._position: dict[str, Any] | None = None
        """In the dataset, at the end of the last epoch. A pass that the trainer has left counts as finished later."""
        self._first_step = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        check_that_all_is_kept()
        check_rounded_steps(args, state)
        self._first_step = self._saved_step = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.after_first_step is not None:
            self.after_first_step()
            self.after_first_step = None
        if self.stopped is None and session.active().should_checkpoint():
            control.should_save = True
        if state.global_step >= state.max_steps and args.logging_strategy != "epoch":
            control.should_log = control.should_save = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._position = None if self._rows is None else self._rows.shard.state_dict()
        is_last_epoch = math.ceil(state.epoch or 0) >= state.num_train_epochs  # with fewer rows than their number said
        if is_last_epoch or state.global_step >= state.max_steps:
            control.should_training_stop = True
        if control.should_training_stop and self._saved_step != state.global_step:
            control.should_log = control.should_save = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if control.should_evaluate:
            self._awaited = self._evaluation_sets
        self._row.update(kwargs["logs"], step=state.global_step)
        self._report_when_complete(control)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._awaited = max(0, self._awaited - 1)
        self._report_when_complete(control)
        _now_it_saves(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._saved = saved_checkpoint(args, state)
        self._saved_step = state.global_step
        session.active().snapshot_ends()  # The row may have to wait for the end of the training.
        if self.stopped is not None:
            self._add_to_last_report()
            return
        self._row = self._row or {"epoch": state.epoch, "step": state.global_step}
        self._report_when_complete(control)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        trained = state.global_step > self._first_step
        if self.stopped is not None or not (trained or self._is_first_attempt()):
            return
        if not trained:
            self._warn_that_nothing_is_left(state)
        if self._rows is not None and self._position is not None:
            self._rows.shard.load_state_dict(self._position)
        self._row = {**self._reported, **self._row}
        self._report(control)

    def _report_when_complete(self, control: TrainerControl) -> None:
        """Not before the rest of this step is there, too."""
        if control.should_evaluate or self._awaited or control.should_save or control.should_training_stop:
            return
        if not self._row or self.stopped is not None:
            return
        self._report(control)

    def _report(self, control: TrainerControl) -> None:
        row, saved = self._row, self._saved
        self._row, self._saved, self._reported = {}, None, row
        try:
            session.report(row, None if saved is None else TransformersCheckpoint.from_directory(saved))
        except StopTraining as stop:
            self.stopped = stop
            control.should_training_stop = True
        if saved is not None:
            shutil.rmtree(saved, ignore_errors=True)

    def _add_to_last_report(self) -> None:
        saved, self._saved = self._saved, None
        if saved is not None:
            session.active().add_checkpoint(TransformersCheckpoint.from_directory(saved))

    def _is_first_attempt(self) -> bool:
        return session.active().rows_before == 0

    def _warn_that_nothing_is_left(self, state: TrainerState) -> None:
        session.active().warn(
            f"The checkpoint has trained {state.global_step} steps, and the training has {state.max_steps}: there "
            "is nothing left to train. To train longer, raise num_train_epochs or max_steps."
        )
