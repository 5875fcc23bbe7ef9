"""Hooks are called in order, only where they are overridden, and name themselves when they fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.run.callbacks import Callback, CallbackList, LoggerCallback, RowLogger
from paceline.run.loggers import CSVLoggerCallback, JsonLoggerCallback, default_loggers
from paceline.run.spec import Trial
from paceline.run.tensorboard import TBXLoggerCallback


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    first = {"trial_id": "4913f_00000", "config": {}}
    return Trial("4913f_00000", "TorchTrainer", str(tmp_path), "e1", last_result=first)


class Recorder(Callback):
    """Writes down every hook with its arguments, which come as keywords."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattribute__(self, name: str) -> Any:
        if name == "setup" or name.startswith("on_"):
            return lambda **arguments: self.calls.append((name, arguments))
        return super().__getattribute__(name)


class MemoryLogger(RowLogger):
    """A batch logger that keeps its rows in a list."""

    def __init__(self, there: int | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.batches: list[int] = []
        self.flushes = 0
        self.ended: list[bool] = []
        self.there = there

    def log_rows(self, trial: Trial, rows: Sequence[dict[str, Any]]) -> None:
        self.rows += rows
        self.batches.append(len(rows))

    def rewind(self, trial: Trial, keep: int) -> int:
        there = keep if self.there is None else min(keep, self.there)
        del self.rows[there:]
        return there

    def flush(self) -> None:
        self.flushes += 1

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self.ended.append(failed)


def test_trial_names(trial: Trial) -> None:
    assert str(trial) == "TorchTrainer_4913f_00000"
    assert trial.logdir == trial.local_path == trial.path
    assert trial.status == "PENDING"
    assert not trial.is_finished
    trial.status = "ERROR"
    assert trial.is_finished


def test_every_hook_gets_the_arguments_of_its_signature(trial: Trial) -> None:
    recorder = Recorder()
    callbacks = CallbackList([recorder])
    checkpoint: Any = object()
    callbacks.setup(stop={"loss": 1}, num_samples=1, total_num_samples=1)
    callbacks.on_trial_start(0, trial)
    callbacks.on_step_begin(1)
    callbacks.on_trial_result(1, trial, {"loss": 2})
    callbacks.on_step_end(1)
    callbacks.on_checkpoint(1, trial, checkpoint)
    callbacks.on_trial_restore(1, trial)
    callbacks.on_trial_complete(2, trial)
    callbacks.on_trial_error(2, trial)
    callbacks.on_experiment_end()
    run = {"trials": [trial], "trial": trial}
    assert recorder.calls == [
        ("setup", {"stop": {"loss": 1}, "num_samples": 1, "total_num_samples": 1, "say": None}),
        ("on_trial_start", {"iteration": 0, **run}),
        ("on_step_begin", {"iteration": 1, "trials": [trial]}),
        ("on_trial_result", {"iteration": 1, **run, "result": {"loss": 2}}),
        ("on_step_end", {"iteration": 1, "trials": [trial]}),
        ("on_trial_save", {"iteration": 1, **run}),
        ("on_checkpoint", {"iteration": 1, **run, "checkpoint": checkpoint}),
        ("on_trial_restore", {"iteration": 1, **run}),
        ("on_trial_complete", {"iteration": 2, **run}),
        ("on_trial_error", {"iteration": 2, **run}),
        ("on_experiment_end", {"trials": [trial]}),
    ]


def test_a_hook_may_name_only_the_arguments_it_uses(trial: Trial) -> None:
    seen: list[Any] = []

    class Picky(Callback):
        def setup(self) -> None:  # type: ignore[override]
            seen.append("setup")

        def on_trial_result(self, **info: Any) -> None:  # type: ignore[override]
            seen.append(info["result"])

        def on_step_end(self, trials: list[Trial], **info: Any) -> None:  # type: ignore[override]
            seen.append((trials, info))

    callbacks = CallbackList([Picky()])
    callbacks.setup(stop=None)
    callbacks.on_trial_result(1, trial, {"loss": 2})
    callbacks.on_step_end(3)
    assert seen == ["setup", {"loss": 2}, ([], {"iteration": 3})]


def test_a_hook_may_have_other_names_for_its_arguments(trial: Trial) -> None:
    seen: list[Any] = []

    class Renames(Callback):
        def on_trial_result(self, step: int, _all: list[Trial], each: Trial, row: Any, **info: Any) -> None:  # type: ignore[override]
            seen.append((step, each, row))

    CallbackList([Renames()]).on_trial_result(1, trial, {"loss": 2})
    assert seen == [(1, trial, {"loss": 2})]


def test_a_hook_that_cannot_be_called_is_rejected_with_the_signature_to_write() -> None:
    class Short(Callback):
        def on_trial_result(self, trial: Trial, result: Any) -> None:  # type: ignore[override]
            """In the place of `trial` comes the iteration."""

    with pytest.raises(ConfigError, match=r"Short.on_trial_result.*iteration, trials, trial, result, \*\*info"):
        CallbackList([Short()])


def test_the_names_of_the_states_of_a_trial(trial: Trial) -> None:
    assert trial.status == Trial.PENDING == "PENDING"
    names = (Trial.RUNNING, Trial.PAUSED, Trial.TERMINATED, Trial.ERROR)
    assert names == ("RUNNING", "PAUSED", "TERMINATED", "ERROR")


def test_callback_that_overrides_nothing_may_be_called(trial: Trial) -> None:
    callback = LoggerCallback()
    callback.setup()
    callback.on_trial_start(0, [trial], trial)
    callback.on_trial_restore(0, [trial], trial)
    callback.on_trial_save(0, [trial], trial)
    callback.on_trial_result(0, [trial], trial, {})
    callback.on_trial_complete(0, [trial], trial)
    callback.on_trial_error(0, [trial], trial)
    callback.set_state({})
    assert callback.get_state() is None


def test_logger_hooks_come_from_the_general_ones(trial: Trial) -> None:
    calls: list[Any] = []

    class Logger(LoggerCallback):
        def log_trial_start(self, trial: Trial) -> None:
            calls.append("start")

        def log_trial_restore(self, trial: Trial) -> None:
            calls.append("restore")

        def log_trial_save(self, trial: Trial) -> None:
            calls.append("save")

        def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
            calls.append((iteration, result))

        def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
            calls.append(failed)

    callbacks = CallbackList([Logger()])
    checkpoint: Any = object()
    callbacks.on_trial_start(0, trial)
    callbacks.on_trial_restore(0, trial)
    callbacks.on_checkpoint(0, trial, checkpoint)
    callbacks.on_trial_result(7, trial, {"loss": 1})
    callbacks.on_trial_complete(8, trial)
    callbacks.on_trial_error(8, trial)
    assert calls == ["start", "restore", "save", (7, {"loss": 1}), False, True]


def test_rows_are_wanted_only_where_somebody_looks_at_them() -> None:
    class Other(Callback):
        def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None: ...

    class Rows(LoggerCallback):
        def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None: ...

    class Steps(Callback):
        def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None: ...

    assert not CallbackList([], default_loggers()).wants_rows
    assert not CallbackList([Callback(), LoggerCallback(), Other()]).wants_rows
    assert CallbackList([Rows()]).wants_rows
    assert CallbackList([Steps()]).wants_rows
    patched = Callback()
    patched.on_trial_result = lambda *args, **info: None  # type: ignore[method-assign]
    assert CallbackList([patched]).wants_rows


def test_custom_callback_of_the_guide_sees_the_row_before(trial: Trial) -> None:
    class LoggingCallback(LoggerCallback):
        def __init__(self) -> None:
            self.results: list[dict[str, Any]] = []

        def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
            self.results.append(trial.last_result)

    callback = LoggingCallback()
    callbacks = CallbackList([callback])
    for epoch in range(3):
        row = {"epoch": epoch}
        callbacks.on_trial_result(epoch + 1, trial, row)
        trial.last_result = row
    assert [result.get("epoch") for result in callback.results] == [None, 0, 1]
    assert callback.results[0]["trial_id"] == "4913f_00000"


def test_user_callbacks_run_in_order_and_cannot_change_each_others_row(trial: Trial) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    class Greedy(Callback):
        def on_trial_result(self, *args: Any, **info: Any) -> None:
            seen.append(("greedy", dict(info["result"])))
            info["result"].clear()

    class Modest(Callback):
        def on_trial_result(self, *args: Any, **info: Any) -> None:
            seen.append(("modest", dict(info["result"])))

    row = {"loss": 1}
    CallbackList([Greedy(), Modest()]).on_trial_result(1, trial, row)
    assert seen == [("greedy", {"loss": 1}), ("modest", {"loss": 1})]
    assert row == {"loss": 1}


def test_exception_names_callback_and_hook(trial: Trial) -> None:
    class Broken(Callback):
        def on_trial_result(self, *args: Any, **info: Any) -> None:
            raise KeyError("lost")

    with pytest.raises(TrainingFailedError, match=r"Broken failed in on_trial_result\(\).*lost") as caught:
        CallbackList([Broken()]).on_trial_result(1, trial, {})
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("wrong", [Callback, object(), print])
def test_what_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="callbacks="):
        CallbackList([wrong])


def test_default_loggers_get_batches_not_rows(trial: Trial) -> None:
    logger = MemoryLogger()
    callbacks = CallbackList([], [logger])
    callbacks.on_trial_start(0, trial)
    callbacks.on_trial_result(1, trial, {"n": 1})
    assert logger.rows == []
    callbacks.log_rows(trial, [{"n": 1}, {"n": 2}])
    assert logger.batches == [2]


def test_flushing_is_bundled(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("paceline.run.callbacks.time.monotonic", lambda: now[0])
    logger = MemoryLogger()
    callbacks = CallbackList([], [logger])
    for _ in range(5):
        callbacks.log_rows(trial, [{"n": 1}])
    assert logger.flushes == 1
    callbacks.flush(force=False)
    assert logger.flushes == 1
    now[0] += 0.2
    callbacks.flush(force=False)
    assert logger.flushes == 2
    callbacks.flush()
    assert logger.flushes == 2, "nothing new to flush"
    callbacks.log_rows(trial, [{"n": 2}])
    callbacks.flush()
    assert logger.flushes == 3


def test_rewind_adds_rows_that_a_dead_driver_did_not_write(trial: Trial) -> None:
    history = [{"n": n} for n in range(3000)]
    complete, behind = MemoryLogger(), MemoryLogger(there=2)
    complete.rows, behind.rows = history[:], history[:2]
    CallbackList([], [complete, behind]).rewind(trial, 2500, lambda start: iter(history[start:2500]))
    assert complete.rows == behind.rows == history[:2500]
    assert complete.batches == []
    assert behind.batches == [1000, 1000, 498]


def test_rewind_reaches_a_users_own_row_logger(trial: Trial) -> None:
    logger = MemoryLogger()
    callbacks = CallbackList([logger])
    for n in range(3):
        callbacks.on_trial_result(n, trial, {"n": n})
    callbacks.rewind(trial, 1)
    assert logger.rows == [{"n": 0}]


@pytest.mark.parametrize("failed", [True, False])
def test_close_ends_the_default_loggers_trials(trial: Trial, failed: bool) -> None:
    logger = MemoryLogger()
    callbacks = CallbackList([], [logger])
    callbacks.on_trial_start(0, trial)
    callbacks.close_trial(trial, failed=failed)
    assert logger.ended == [failed]


@pytest.mark.parametrize("kind", [JsonLoggerCallback, CSVLoggerCallback, TBXLoggerCallback])
def test_a_listed_built_in_logger_does_not_write_twice(trial: Trial, kind: type[RowLogger]) -> None:
    callbacks = CallbackList([kind()], [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()])
    assert not callbacks.wants_rows
    callbacks.on_trial_start(0, trial)
    callbacks.log_rows(trial, [{"n": 1, "training_iteration": 1}])
    callbacks.close_trial(trial, failed=False)
    names = sorted(path.name.split(".tfevents")[0] for path in Path(trial.local_path).glob("[a-z]*.*"))
    assert names == ["events.out", "params.json", "progress.csv", "result.json"]
    assert len(Path(trial.local_path, "result.json").read_text().splitlines()) == 1
    assert len(Path(trial.local_path, "progress.csv").read_text().splitlines()) == 2


def test_a_subclass_of_a_built_in_logger_takes_its_place_row_by_row(trial: Trial) -> None:
    class Filtered(JsonLoggerCallback):
        def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
            super().log_trial_result(iteration, trial, {"n": result["n"]})

    callbacks = CallbackList([Filtered()], [JsonLoggerCallback()])
    assert callbacks.wants_rows
    callbacks.on_trial_start(0, trial)
    callbacks.on_trial_result(1, trial, {"n": 1, "secret": 2})
    callbacks.log_rows(trial, [{"n": 1, "secret": 2}])
    callbacks.on_trial_complete(1, trial)
    callbacks.close_trial(trial, failed=False)
    assert Path(trial.local_path, "result.json").read_text() == '{"n":1}\n'


def test_a_method_that_is_nearly_a_hook_is_told_once() -> None:
    class Misspelt(Callback):
        def on_trial_results(self, *args: Any, **info: Any) -> None:
            """Never called."""

        def on_my_own_business(self) -> None:
            """Like nothing that there is."""

    with pytest.warns(UserWarning, match=r"Misspelt.*on_trial_results\(\).*on_trial_result\(\)") as told:
        CallbackList([Misspelt(), Misspelt()])
    assert len(told) == 1

    class Logger(LoggerCallback):
        def log_trial_results(self, *args: Any) -> None:
            """Never called either."""

    with pytest.warns(UserWarning, match=r"Logger.*log_trial_results\(\).*log_trial_result\(\)"):
        CallbackList([Logger()])


def test_the_loggers_that_there_are_and_hooks_as_they_should_be_are_not_doubted() -> None:
    class Fine(JsonLoggerCallback):
        def on_trial_result(self, *args: Any, **info: Any) -> None:
            """A hook."""

    CallbackList([Fine(), CSVLoggerCallback(), TBXLoggerCallback(), MemoryLogger(), Recorder()], default_loggers())
