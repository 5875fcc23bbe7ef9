"""What goes wrong in the driver itself, not in a worker: the run still ends in order, with its result at hand."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, Result, session
from paceline.air.errors import StorageError, TrainingFailedError
from paceline.run.callbacks import Callback
from paceline.testing.invariants import check_run
from paceline.train import DataParallelTrainer
from tests.storage.small_disk import run_on_small_disk
from tests.train.quick import quick_trainer


def count(config: dict[str, Any]) -> None:
    for step in range(config["steps"]):
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


class BreaksAtTheThirdRow(Callback):
    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        if iteration == 3:
            raise LookupError("the tracker is away")


class BreaksAtTheEnd(Callback):
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        raise LookupError("the tracker is away")


def test_a_broken_callback_ends_the_run_and_leaves_its_result() -> None:
    trainer = quick_trainer(count, config={"steps": 1000}, callbacks=[BreaksAtTheThirdRow()])
    with pytest.raises(TrainingFailedError, match=r"BreaksAtTheThirdRow.*on_trial_result.*tracker is away") as caught:
        trainer.fit()
    assert isinstance(caught.value.__cause__, LookupError)
    result = caught.value.result
    assert result is not None
    assert result.error is caught.value
    assert result.checkpoint is not None
    assert result.log_dir is not None
    check_run(result.log_dir)
    assert "the tracker is away" in (result.log_dir / "error.txt").read_text()
    assert Result.from_path(result.path).status == "failed"


def test_without_raising_the_result_carries_the_callbacks_error() -> None:
    trainer = quick_trainer(count, inline=True, config={"steps": 1000}, callbacks=[BreaksAtTheThirdRow()])
    result = trainer.fit(raise_on_error=False)
    assert isinstance(result.error, TrainingFailedError)
    assert isinstance(result.error.__cause__, LookupError)


def test_an_error_after_the_end_does_not_undo_it() -> None:
    with pytest.raises(TrainingFailedError, match="the tracker is away"):
        quick_trainer(count, inline=True, config={"steps": 2}, name="ended", callbacks=[BreaksAtTheEnd()]).fit()
    (trial,) = Path(os.environ["PACELINE_RESULTS_DIR"], "ended").iterdir()
    assert Result.from_path(trial).status == "finished"


def test_results_deleted_during_the_run_are_named() -> None:
    class Deletes(Callback):
        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            if iteration == 2:
                shutil.rmtree(trial.local_path)

    with pytest.raises((StorageError, TrainingFailedError)):
        quick_trainer(count, config={"steps": 1000}, callbacks=[Deletes()]).fit()


class DeletesTheRun(Callback):
    """While the row's checkpoint is committed and nobody has been told of it."""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        if iteration == 3:
            shutil.rmtree(trial.local_path)


@pytest.mark.parametrize("keep", [None, 1, 2])
def test_a_run_that_is_deleted_between_commit_and_callback_is_a_storage_error(keep: int | None) -> None:
    trainer = quick_trainer(
        count,
        inline=True,
        config={"steps": 1000},
        callbacks=[DeletesTheRun()],
        checkpoint_config=CheckpointConfig(num_to_keep=keep),
    )
    with pytest.raises(StorageError, match="deleted while") as caught:
        trainer.fit()
    result: Result = caught.value.result  # type: ignore[attr-defined]
    assert (result.status, result.error) == ("failed", caught.value)
    assert result.metrics["step"] == 2
    assert (result.checkpoint, result.best_checkpoints) == (None, [])


FULL_DISK = """
import sys
from pathlib import Path
from paceline import train, tune
from paceline.air.errors import StorageError
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig

disk = Path(sys.argv[1])

class FillsTheDisk(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        if iteration == 2:
            with open(disk / "filler", "wb", buffering=0) as filler:
                try:
                    while True:
                        filler.write(bytes(4096))
                except OSError:
                    pass

def train_loop():
    train.report({"step": 1})
    for step in range(2, 100):
        train.report({"step": step, "text": "x" * 10_000})

config = RunConfig(
    name="run", storage_path=str(disk), verbose=0, engine="inline", callbacks=[FillsTheDisk()],
    stop={"step": 100},  # so that every row is answered before the next one comes
)
try:
    DataParallelTrainer(train_loop, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
except StorageError as error:
    print(error.result.status, error.result.metrics["step"], len(error.result.metrics_dataframe), error)
print([path.name for path in disk.glob("run/*/.*")])
"""


def test_rows_that_find_the_disk_full_leave_a_result_and_nothing_half_written(tmp_path: Path) -> None:
    told, leftovers = run_on_small_disk(FULL_DISK, tmp_path).splitlines()
    assert told.startswith("failed 1 1 [Errno 28]")
    assert "journal" in told
    assert leftovers == "[]"


def test_a_second_interrupt_carries_what_was_reached() -> None:
    class InterruptsTwice(Callback):
        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            if iteration == 3:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        quick_trainer(count, config={"steps": 1000}, callbacks=[InterruptsTwice()]).fit()
    result: Result = caught.value.result  # type: ignore[attr-defined]
    assert result.status == "interrupted"
    assert result.metrics["step"] >= 1
    assert result.path in str(caught.value)
    assert DataParallelTrainer.can_restore(result.path)
    assert result.log_dir is not None
    check_run(result.log_dir)


def fail_once(config: dict[str, Any]) -> None:
    newest = session.get_checkpoint()
    start = newest.to_dict()["step"] + 1 if newest else 0
    for step in range(start, 100):
        if step == 2 and start == 0:
            raise RuntimeError("not yet")
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def test_restore_brings_a_plain_stop_criterion_back() -> None:
    stopped = {"training_iteration": 5}
    failed = quick_trainer(fail_once, workers=1, config={}, stop=stopped).fit(raise_on_error=False)
    result = DataParallelTrainer.restore(failed.path, train_loop_per_worker=fail_once).fit()
    assert result.metrics["training_iteration"] == 5


def test_restore_says_which_code_it_cannot_bring_back(capfd: pytest.CaptureFixture[str]) -> None:
    settings = {"stop": lambda _, row: row["step"] >= 4, "callbacks": [Callback()], "verbose": 1}
    failed = quick_trainer(fail_once, inline=True, config={}, **settings).fit(raise_on_error=False)
    DataParallelTrainer.restore(failed.path, train_loop_per_worker=fail_once).fit()
    shown = capfd.readouterr().out
    assert re.search("callbacks.*stop criterion", shown)
    assert re.search("iteration 2.*checkpoint_000001", shown)


def test_code_that_restore_cannot_bring_back_is_missed_in_silence_too() -> None:
    failed = quick_trainer(fail_once, inline=True, config={}, callbacks=[Callback()]).fit(raise_on_error=False)
    with pytest.warns(UserWarning, match=r"The run had callbacks, which restore\(\) cannot bring back"):
        DataParallelTrainer.restore(failed.path, train_loop_per_worker=fail_once).fit()
