"""Callbacks of a search: which hooks come when, what they see, and what becomes of one that raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import Checkpoint, FailureConfig, RunConfig, session
from paceline.air.errors import TuneError
from paceline.testing.processes import Marks
from paceline.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback
from paceline.tune.schedulers import HyperBandScheduler
from tests.tune.interrupting import InterruptAt
from tests.tune.searching import column, config_of, search, tuner


class Diary(tune.Callback):
    """Writes down every hook with the trial's number and what matters of the arguments."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def of(self, number: int) -> list[tuple[Any, ...]]:
        """The entries of one trial, without its number."""
        return [(hook, *rest) for hook, of, *rest in self.entries if of == number]

    def hooks(self) -> list[str]:
        return [entry[0] for entry in self.entries]

    def setup(self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **info: Any) -> None:
        self.entries.append(("setup", None, stop, num_samples, total_num_samples))

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.entries.append(("start", _number(trial), trial.status, trial.config["x"]))

    def on_trial_restore(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.entries.append(("restore", _number(trial), iteration))

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        assert trial in trials
        before = trial.last_result.get("step")
        self.entries.append(("result", _number(trial), iteration, result["step"], before))

    def on_trial_save(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.entries.append(("save", _number(trial), iteration))

    def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any) -> None:
        self.entries.append(("checkpoint", _number(trial), iteration, checkpoint.to_dict()["step"]))

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.entries.append(("complete", _number(trial), trial.status, trial.last_result["step"], trial.outcome))

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.entries.append(("error", _number(trial), trial.status, trial.outcome))

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        self.entries.append(("end", None, [(_number(trial), trial.status) for trial in trials]))


def _number(trial: Any) -> int:
    return int(trial.trial_id.split("_")[1])


def test_every_hook_in_order(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint else 0
        for step in range(start + 1, 4):
            saved = Checkpoint.from_dict({"step": step}) if step == 2 else None
            session.report({"step": step}, checkpoint=saved)
        if config["x"] == 1 and Marks(tmp_path / "marks").claim("failure"):
            raise RuntimeError("once")
        if config["x"] == 2:
            raise RuntimeError("always")

    diary = Diary()
    grid = tuner(
        train,
        {"x": tune.grid_search([0, 1, 2])},
        callbacks=[diary],
        stop={"step": 100},
        failure_config=FailureConfig(max_failures=1),
    ).fit()
    assert grid.num_errors == 1
    assert diary.entries[0] == ("setup", None, {"step": 100}, 1, 3)
    assert diary.entries[-1] == ("end", None, [(0, "TERMINATED"), (1, "TERMINATED"), (2, "ERROR")])
    first = [
        ("start", "RUNNING", 0),
        ("result", 1, 1, None),
        ("result", 2, 2, 1),
        ("save", 2),
        ("checkpoint", 2, 2),
        ("result", 3, 3, 2),
    ]
    assert diary.of(0) == [*first, ("complete", "TERMINATED", 3, "finished")]
    again = [("restore", 2), ("result", 3, 3, 3)]
    assert [entry[0] for entry in diary.of(1)] == [entry[0] for entry in [*first, *again, ("complete",)]]
    assert diary.of(1)[-3] == ("restore", 2)
    assert diary.of(2)[-1] == ("error", "ERROR", "failed")
    assert [entry[0] for entry in diary.of(2)].count("restore") == 1


def test_an_interrupt_is_not_a_good_end_and_a_restore_starts_the_trial_again() -> None:
    def train(config: dict[str, Any]) -> None:
        for step in range(1, 4):
            session.report({"step": step})

    diary, space = Diary(), {"x": tune.grid_search([0, 1])}
    callbacks = [diary, InterruptAt(1)]
    with pytest.raises(KeyboardInterrupt) as caught:
        tuner(train, space, callbacks=callbacks, engine="inline", max_concurrent_trials=1).fit()
    ends = [entry for entry in diary.entries if entry[0] == "complete"]
    assert [(number, status, how) for _, number, status, _, how in ends] == [
        (0, "TERMINATED", "finished"),
        (1, "TERMINATED", "interrupted"),
    ]
    diary.entries.clear()
    grid = caught.value.result  # type: ignore[attr-defined]
    settings = RunConfig(callbacks=[diary], verbose=0, engine="inline")
    tune.Tuner.restore(grid.experiment_path, train, run_config=settings).fit()
    assert diary.hooks() == ["setup", "start", "restore", "result", "result", "result", "complete", "end"]
    assert diary.of(1)[1] == ("restore", 0)  # without a checkpoint
    assert diary.of(1)[-1] == ("complete", "TERMINATED", 3, "finished")


def test_a_trial_that_waits_is_started_once() -> None:
    def train(config: dict[str, Any]) -> None:
        for step in range(1, 100):
            session.report({"step": step, "score": config["x"]})

    diary = Diary()
    search(
        train,
        {"x": tune.grid_search([1, 2, 3])},
        callbacks=[diary],
        scheduler=HyperBandScheduler(max_t=3, reduction_factor=3),
        metric="score",
        mode="max",
    )
    assert diary.hooks().count("start") == 3
    assert diary.hooks().count("complete") == 3
    assert diary.hooks()[-1] == "end"
    assert [entry[2] for entry in diary.of(2) if entry[0] == "result"] == [1, 2, 3]
    assert [len([entry for entry in diary.of(number) if entry[0] == "result"]) for number in (0, 1)] == [1, 1]


def test_a_logger_of_ones_own_and_the_built_in_ones() -> None:
    class Lines(LoggerCallback):
        def __init__(self) -> None:
            self.lines: list[str] = []

        def log_trial_start(self, trial: Any) -> None:
            self.lines.append(f"start {trial.config['x']}")

        def log_trial_result(self, iteration: int, trial: Any, result: Any) -> None:
            self.lines.append(f"row {trial.config['x']} {iteration} {result['step']}")

        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            self.lines.append(f"end {trial.config['x']} {failed}")

    def train(config: dict[str, Any]) -> None:
        session.report({"step": 1})
        session.report({"step": 2})
        if config["x"] == 2:
            raise ValueError("two")

    lines = Lines()
    loggers = [lines, JsonLoggerCallback(), CSVLoggerCallback()]
    grid = tuner(train, {"x": tune.grid_search([1, 2])}, callbacks=loggers).fit()
    for x, failed in ((1, False), (2, True)):
        mine = [line for line in lines.lines if line.split()[1] == str(x)]
        assert mine == [f"start {x}", f"row {x} 1 1", f"row {x} 2 2", f"end {x} {failed}"]
    for result in grid:
        directory = Path(str(result.path))
        rows = [json.loads(line) for line in (directory / "result.json").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2] == column(result, "step")
        assert len((directory / "progress.csv").read_text().splitlines()) == 3
        assert json.loads((directory / "params.json").read_text()) == config_of(result)


@pytest.mark.parametrize(
    "hook", ["setup", "on_trial_start", "on_trial_result", "on_trial_complete", "on_experiment_end"]
)
def test_a_callback_that_raises_ends_the_search(hook: str, tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")

    def train(config: dict[str, Any]) -> None:
        for step in range(3):
            marks.say("step", step=step, trial=session.get_trial_id())
            session.report({"step": step})

    class Raises(tune.Callback):
        pass

    def fails(self: Any, *args: Any, **keywords: Any) -> None:
        raise ZeroDivisionError("in the callback")

    setattr(Raises, hook, fails)
    with pytest.raises(TuneError, match=rf"Raises.*{hook}.*in the callback") as raised:
        tuner(train, {"x": tune.grid_search([1, 2, 3, 4])}, callbacks=[Raises()], max_concurrent_trials=1).fit()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert hasattr(raised.value, "result")
    trials = {mark["trial"] for mark in marks.read("step")}
    assert len(trials) == {"setup": 0, "on_trial_start": 0, "on_experiment_end": 4}.get(hook, 1)


def test_a_stopper_and_a_scheduler_that_raise_end_the_search_with_their_own_error() -> None:
    def train(config: dict[str, Any]) -> None:
        for step in range(100):
            session.report({"step": step})

    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        return bool(result["no such key"])

    class Broken(tune.schedulers.TrialScheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: Any) -> str:
            raise ZeroDivisionError("in the scheduler")

    with pytest.raises(KeyError, match="no such key"):
        tuner(train, num_samples=3, stop=stop).fit()
    with pytest.raises(ZeroDivisionError, match="in the scheduler"):
        tuner(train, num_samples=3, scheduler=Broken()).fit()


def test_callbacks_may_not_change_what_others_see() -> None:
    class Vandal(tune.Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            result.clear()

    diary = Diary()

    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"step": 5}

    grid = search(train, {"x": tune.grid_search([1, 2])}, callbacks=[Vandal(), diary], metric="step", mode="max")
    assert [result.metrics["step"] for result in grid] == [5, 5]
    assert [entry for entry in diary.of(0) if entry[0] == "result"] == [("result", 1, 5, None)]
