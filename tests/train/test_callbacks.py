"""Callbacks of the user: when they are called, and what becomes of their errors."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, RunConfig, session
from paceline.air.errors import TrainingFailedError
from paceline.run.callbacks import Callback
from paceline.run.spec import Trial
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer
from paceline.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback
from tests.train.quick import quick_trainer

HOOKS = (
    "setup", "on_trial_start", "on_trial_restore", "on_trial_save", "on_trial_result", "on_trial_complete",
    "on_trial_error", "on_checkpoint", "on_experiment_end",
)  # fmt: skip
FAILING = (*HOOKS, "on_step_begin", "on_step_end")


class Recorder(Callback):
    """Writes down every hook with what there is to say about it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        for hook in HOOKS:
            setattr(self, hook, self._recording(hook))

    def _recording(self, hook: str) -> Any:
        def record(**keywords: Any) -> None:
            note: Any = hook
            arguments = tuple(keywords.values())
            if hook == "on_trial_result":
                iteration, trials, trial, result = arguments
                assert trials == [trial]
                assert trial.status == "RUNNING"
                note = (hook, iteration, result["step"], trial.last_result.get("step"))
            elif hook == "on_checkpoint":
                iteration, _, trial, checkpoint = arguments
                assert trial.checkpoint == checkpoint
                note = (hook, iteration, checkpoint.number)
            elif hook in ("on_trial_complete", "on_trial_error"):
                iteration, _, trial = arguments
                note = (hook, iteration, trial.status, trial.outcome)
            elif hook == "on_trial_restore":
                note = (hook, arguments[0])
            self.calls.append(note)

        return record


def three_steps(config: dict[str, Any]) -> None:
    newest = session.get_checkpoint()
    for step in range(newest.to_dict()["step"] + 1 if newest else 0, 3):
        fails = config.get("fail") if step == 2 and session.get_world_rank() == 0 else None
        if fails == "always" or (fails and Marks(fails).claim("failure")):
            raise ValueError("at the third step")
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}) if step == 1 else None)


def eight_steps() -> None:
    newest = session.get_checkpoint()
    for step in range(newest.to_dict()["step"] + 1 if newest else 0, 8):
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}) if step == 3 else None)


def test_the_hooks_of_a_run_in_their_order() -> None:
    recorder = Recorder()
    quick_trainer(three_steps, config={}, callbacks=[recorder]).fit()
    assert recorder.calls == [
        "setup",
        "on_trial_start",
        ("on_trial_result", 1, 0, None),
        ("on_trial_result", 2, 1, 0),
        "on_trial_save",
        ("on_checkpoint", 2, 0),
        ("on_trial_result", 3, 2, 1),
        ("on_trial_complete", 3, "TERMINATED", "finished"),
        "on_experiment_end",
    ]


def test_the_hooks_of_a_retry(tmp_path: Path) -> None:
    recorder = Recorder()
    quick_trainer(
        three_steps,
        inline=True,
        config={"fail": str(tmp_path / "marks")},
        callbacks=[recorder],
        failure_config=FailureConfig(max_failures=1),
    ).fit()
    assert recorder.calls[6:] == [
        ("on_trial_restore", 2),
        ("on_trial_result", 3, 2, 1),
        ("on_trial_complete", 3, "TERMINATED", "finished"),
        "on_experiment_end",
    ]


class Interrupt(Callback):
    """Ctrl-C at one row."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if result["step"] == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("at", "after"), [(0, 0), (5, 4)], ids=["without a checkpoint", "with a checkpoint"])
def test_the_hooks_of_an_interrupt_and_of_a_restore(at: int, after: int) -> None:
    recorder = Recorder()
    interrupt: list[Callback] = [recorder, Interrupt(at)]
    with pytest.raises(KeyboardInterrupt) as caught:
        # With stop=, each row waits for a decision: the run ends at the next one.
        quick_trainer(eight_steps, inline=True, callbacks=interrupt, stop={"step": 99}).fit()
    (hook, reached, *how), end = recorder.calls[-2:]
    assert (hook, how, end) == ("on_trial_complete", ["TERMINATED", "interrupted"], "on_experiment_end")
    assert reached > after
    recorder.calls.clear()
    path = caught.value.result.path  # type: ignore[attr-defined]
    settings = RunConfig(callbacks=[recorder], verbose=0, engine="inline")
    DataParallelTrainer.restore(path, eight_steps, run_config=settings).fit()
    assert recorder.calls[:3] == ["setup", "on_trial_start", ("on_trial_restore", after)]
    rows = [call[1] for call in recorder.calls if call[0] == "on_trial_result"]
    assert rows == list(range(after + 1, 9))  # those behind the checkpoint come again with the same iteration
    assert recorder.calls[-2] == ("on_trial_complete", 8, "TERMINATED", "finished")


def test_the_hooks_of_a_failure() -> None:
    recorder = Recorder()
    trainer = quick_trainer(three_steps, inline=True, config={"fail": "always"}, callbacks=[recorder])
    trainer.fit(raise_on_error=False)
    assert recorder.calls[6:] == [("on_trial_error", 2, "ERROR", "failed"), "on_experiment_end"]


@pytest.mark.parametrize(
    ("hook", "inline"),
    [
        *((hook, True) for hook in FAILING),
        ("on_checkpoint", False),
        *(pytest.param(hook, False, marks=pytest.mark.slow) for hook in FAILING if hook != "on_checkpoint"),
    ],
)
def test_an_exception_in_a_callback_surfaces_and_nothing_is_left_running(
    tmp_path: Path, results_dir: Path, hook: str, inline: bool
) -> None:
    class Broken(Callback):
        pass

    def fail(*arguments: Any, **keywords: Any) -> None:
        raise ZeroDivisionError("in the callback")

    broken = Broken()
    setattr(broken, hook, fail)
    config = {
        "on_trial_error": {"fail": "always"},
        "on_trial_restore": {"fail": str(tmp_path / "marks")},
    }.get(hook, {})
    trainer = quick_trainer(
        three_steps,
        inline=inline,
        config=config,
        callbacks=[broken],
        failure_config=FailureConfig(max_failures=1 if hook == "on_trial_restore" else 0),
    )
    with pytest.raises(TrainingFailedError, match=rf"Broken.*{hook}.*in the callback") as caught:
        trainer.fit()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    (trial,) = (path.parent for path in results_dir.glob("*/*/journal.jsonl"))
    check_run(trial)
    if hook not in ("on_trial_result", "on_checkpoint"):
        return
    # The trial is not locked any more, and can be taken up again without the callback.
    again = RunConfig(verbose=0, engine="inline" if inline else None)
    result = DataParallelTrainer.restore(
        trial, train_loop_per_worker=three_steps, train_loop_config={}, run_config=again
    ).fit()
    check_run(trial, result=result, iterations=3)


def test_a_logger_that_the_user_lists_takes_the_place_of_the_default_one() -> None:
    loggers = [JsonLoggerCallback(), CSVLoggerCallback()]
    result = quick_trainer(three_steps, inline=True, config={}, callbacks=loggers).fit()
    check_run(result.path, result=result, iterations=3)
    assert len((Path(result.path) / "progress.csv").read_text().splitlines()) == 4


def test_callbacks_need_not_be_able_to_travel() -> None:
    import threading

    class Holding(LoggerCallback):
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.rows = 0

        def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
            with self.lock:
                self.rows += 1

    holding = Holding()
    quick_trainer(three_steps, workers=1, config={}, callbacks=[holding]).fit()
    assert holding.rows == 3


def test_what_a_callback_does_to_its_row_changes_nothing() -> None:
    class Vandal(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
            result.clear()

    result = quick_trainer(three_steps, inline=True, config={}, callbacks=[Vandal()]).fit()
    check_run(result.path, result=result, iterations=3)
    assert result.metrics["step"] == 2


def test_trial_as_a_callback_sees_it() -> None:
    seen: list[Trial] = []

    class Looking(Callback):
        def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
            seen.append(trial)

    trainer = quick_trainer(three_steps, inline=True, config={"lr": 1}, callbacks=[Looking()], name="experiment")
    result = trainer.fit()
    (trial,) = seen
    assert trial.logdir == trial.local_path == trial.path == result.path
    assert trial.config == {"train_loop_config": {"lr": 1}}
    assert (trial.experiment_name, trial.experiment_tag) == ("experiment", "0")
    assert str(trial) == f"DataParallelTrainer_{trial.trial_id}"
    assert trial.last_result["done"] is True
    assert trial.is_finished
