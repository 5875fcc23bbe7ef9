"""ReportCallback: reports the epochs of a Lightning Trainer that a train function runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

from paceline.air import session as session_slot
from paceline.air.errors import StopTraining
from paceline.air.session import report
from paceline.train.lightning.checkpoint import CHECKPOINT_FILE, LightningCheckpoint
from paceline.train.lightning.loop import count_anew, end_train_pass, end_validation_pass, warn_if_nothing_was_left
from paceline.train.lightning.packages import derived_classes, lightning, package_of
from paceline.train.lightning.strategies import (
    MeshStrategy,
    ShardedStrategy,
    WorkerEnvironment,
    WorkerStrategy,
    check_checkpoint_io,
    check_ranks,
)


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
    "checkpoint.ckpt", which `trainer.fit(ckpt_path=...)` goes on from. When the run asks for a checkpoint within an
    epoch (`train.should_checkpoint()`), that is a row of its own.
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
        end_train_pass(trainer)
        self.report_now(trainer)

    def report_now(self, trainer: Any) -> None:
        assert self._scratch is not None
        path = os.path.join(self._scratch, self.CHECKPOINT_NAME)
        session_slot.active().snapshot_begins()
        trainer.save_checkpoint(path, weights_only=False)
        try:
            report(row_of(trainer), LightningCheckpoint._at(path))
        finally:
            if trainer.is_global_zero:
                shutil.rmtree(self._scratch, ignore_errors=True)


class StepsToAsk:
    """Asks the run after each step of the optimizer whether to save. Between two of them gradients add up, which no
    checkpoint has."""

    def __init__(self) -> None:
        self._step = 0

    def should_checkpoint(self, trainer: Any) -> bool:
        if trainer.global_step == self._step:
            return False
        self._step = trainer.global_step
        return session_slot.active().should_checkpoint()


class EpochEndReporter:
    """Calls a ReportCallback when everything else of an epoch is done."""

    def __init__(self, reporter: EpochReporter) -> None:
        super().__init__()
        self._reporter = reporter
        self._trained = False
        self._has_trained = False
        self._steps = StepsToAsk()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._has_trained = False  # one Trainer may fit several times

    def on_train_batch_start(self, trainer: Any, *arguments: Any) -> None:
        self._trained = self._has_trained = True

    def on_train_batch_end(self, trainer: Any, *arguments: Any, **keywords: Any) -> None:
        # After the last batch the epoch's row has a checkpoint, when the validation is done.
        if not trainer.is_last_batch and self._steps.should_checkpoint(trainer):
            self._reporter.report_now(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        end_validation_pass(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._trained:  # otherwise its row came with the checkpoint that this run began from
            self._trained = False
            self._steps.should_checkpoint(trainer)  # A preemption ends with this row.
            self._reporter.report_epoch(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._has_trained:
            warn_if_nothing_was_left(trainer)


def row_of(trainer: Any) -> dict[str, Any]:
    """What the module has logged, as plain numbers; its own "epoch" and "step" win."""
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return {"epoch": trainer.current_epoch, "step": trainer.global_step, **logged}


class SaveReporter:
    """Reports each train epoch, after its validation; when Lightning has saved, the row has the checkpoint.

    It also saves when the run asks for it. A save within an epoch is a row of its own. As a checkpoint callback it is
    called last, after the module.
    """

    dirpath: str | None
    best_model_path: str
    last_model_path: str
    best_k_models: dict[str, Any]
    save_top_k: int
    _last_checkpoint_saved: str
    clears_files = False
    """The directory is the run's: no more files are kept there than Lightning itself has a use for."""
    stopped: StopTraining | None = None
    """Why the run ends after the epoch that was reported last. For Lightning that is an ending like any other."""
    _saved: str | None = None
    """What was saved since the last report. Every rank knows the name; the file is rank 0's."""
    _trained = False
    """Since the last row of an epoch."""
    _has_trained = False
    """Since the fit began."""
    _steps = StepsToAsk()

    def on_train_start(self, trainer: Any, *arguments: Any) -> None:
        super().on_train_start(trainer, *arguments)  # type: ignore[misc]
        self._steps = StepsToAsk()
        count_anew(trainer)
        self._clear(trainer)  # what an attempt that was killed has left

    def on_train_batch_start(self, trainer: Any, *arguments: Any) -> None:
        super().on_train_batch_start(trainer, *arguments)  # type: ignore[misc]
        self._trained = self._has_trained = True

    def on_train_batch_end(self, trainer: Any, *arguments: Any, **keywords: Any) -> None:
        super().on_train_batch_end(trainer, *arguments, **keywords)  # type: ignore[misc]
        if not trainer.is_last_batch:  # Otherwise the validation comes before the row that would have the checkpoint.
            self._save_if_asked(trainer)
        try:
            self._report_within_epoch(trainer)
        except StopTraining as stop:
            self._trained = False  # The epoch does not end here.
            trainer.limit_val_batches = 0  # Lightning would validate before it stops, and there may be little time.
            self._stop(trainer, stop)

    def on_validation_end(self, trainer: Any, *arguments: Any) -> None:
        end_validation_pass(trainer)
        super().on_validation_end(trainer, *arguments)  # type: ignore[misc]
        self._report_within_epoch(trainer)

    def on_train_epoch_end(self, trainer: Any, *arguments: Any) -> None:
        if not self._trained:  # the end of an epoch whose row came with the checkpoint that this run began from
            return
        self._trained = False
        end_train_pass(trainer)
        super().on_train_epoch_end(trainer, *arguments)  # type: ignore[misc]
        self._save_if_asked(trainer)
        try:
            self._report(trainer)
        except StopTraining as stop:
            self._stop(trainer, stop)

    def _stop(self, trainer: Any, stop: StopTraining) -> None:
        """Raised in a hook it would be an error to Lightning, and loggers would call the run a failed one."""
        self.stopped = stop
        trainer.should_stop = True
        trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None

    def on_train_end(self, trainer: Any, *arguments: Any) -> None:
        super().on_train_end(trainer, *arguments)  # type: ignore[misc]
        if self._saved is not None:
            session_slot.active().add_checkpoint(LightningCheckpoint._at(self._saved))

    def on_fit_end(self, trainer: Any, *arguments: Any) -> None:
        super().on_fit_end(trainer, *arguments)  # type: ignore[misc]
        if not self._has_trained:
            warn_if_nothing_was_left(trainer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Which were the best so far is known after a failure; another run's best are not this one's."""
        if self.clears_files and session_slot.active().rows_before > 0:
            state_dict = _moved(state_dict, str(state_dict.get("dirpath")), str(self.dirpath))
        if state_dict.get("dirpath") == self.dirpath:
            super().load_state_dict(state_dict)  # type: ignore[misc]

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        """Called for every save, whatever the reason. That there was one is not told in a public way."""
        session = session_slot.active()
        session.snapshot_begins()
        super()._save_checkpoint(trainer, filepath)  # type: ignore[misc]
        session.snapshot_ends()
        self._saved = filepath

    def _save_if_asked(self, trainer: Any) -> None:
        if self._steps.should_checkpoint(trainer) and self._saved is None:
            self._save_checkpoint(trainer, os.path.join(str(self.dirpath), f"asked-step={trainer.global_step}.ckpt"))

    def _report_within_epoch(self, trainer: Any) -> None:
        if self._saved is not None and not trainer.is_last_batch:  # otherwise the row of the epoch takes it along
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        saved, self._saved = self._saved, None
        session_slot.report(row_of(trainer), None if saved is None else LightningCheckpoint._at(saved))
        self._clear(trainer)

    def _clear(self, trainer: Any) -> None:
        """The run has its own copies, and its own limit to them: `save_top_k=-1` shall not fill the disk beside them.

        The best and the last stay for loggers and callbacks that read them, and with a limit as many as that is:
        Lightning counts them by their names.
        """
        if not self.clears_files or not trainer.is_global_zero or self.dirpath is None:
            return
        wanted = {self.best_model_path, self.last_model_path, self._last_checkpoint_saved}
        if self.save_top_k != -1:
            wanted.update(self.best_k_models)
        for path in Path(self.dirpath).glob("*"):
            if str(path) not in wanted:
                trainer.strategy.checkpoint_io.remove_checkpoint(path)


def _moved(state: Any, before: str, now: str) -> Any:
    """The state of a ModelCheckpoint with another directory: on another machine, each attempt has its own."""
    if isinstance(state, str):
        return now + state.removeprefix(before) if state.startswith(before) else state
    if isinstance(state, dict):
        return {_moved(name, before, now): _moved(value, before, now) for name, value in state.items()}
    return state


def derive(package: str, module: str) -> dict[str, type]:
    """The classes for one of Lightning's packages: our half of each, which knows the session, before Lightning's.

    `module` is where they will be found by name.
    """
    library = lightning(package)
    strategies, callbacks = library.strategies, library.callbacks
    environments = lightning(f"{package}.plugins.environments")
    return {
        name: type(name, (ours, theirs), {"__module__": module, "__doc__": ours.__doc__})
        for name, ours, theirs in (
            ("DDPStrategy", WorkerStrategy, strategies.DDPStrategy),
            ("FSDPStrategy", ShardedStrategy, strategies.FSDPStrategy),
            ("ModelParallelStrategy", MeshStrategy, strategies.ModelParallelStrategy),
            ("DeepSpeedStrategy", WorkerStrategy, strategies.DeepSpeedStrategy),
            ("LightningEnvironment", WorkerEnvironment, environments.ClusterEnvironment),
            ("ReportCallback", EpochReporter, callbacks.Callback),
            ("ReportAtEpochEnd", EpochEndReporter, callbacks.Checkpoint),
            ("ReportingModelCheckpoint", SaveReporter, callbacks.ModelCheckpoint),
        )
    }
