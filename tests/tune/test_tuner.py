"""A Tuner over functions and classes: what is run, where, and when it ends."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import tune
from paceline.air import Checkpoint, FailureConfig, RunConfig, session
from paceline.testing.processes import Marks
from paceline.tune import TuneConfig, Tuner
from paceline.tune.stopper import MaximumIterationStopper, Stopper
from tests.tune.searching import Overlap, column, config_of, search, tuner

pytestmark = pytest.mark.usefixtures("two_cpus")


# -- what is run ------------------------------------------------------------------------------


def test_a_grid_times_samples_of_a_function() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"score": config["a"] * 10 + config["b"]}

    space = {"a": tune.grid_search([1, 2, 3]), "b": tune.uniform(0, 1), "c": "constant"}
    grid = search(train, space, num_samples=4, metric="score", mode="max")
    assert len(grid) == 12
    assert [config_of(result)["a"] for result in grid] == [1, 2, 3] * 4
    assert len({config_of(result)["b"] for result in grid}) == 12
    assert {config_of(result)["c"] for result in grid} == {"constant"}
    best = grid.get_best_result()
    assert best.metrics["score"] == max(result.metrics["score"] for result in grid)
    assert config_of(best)["a"] == 3
    assert len({result.path for result in grid}) == 12
    assert {str(Path(str(result.path)).parent) for result in grid} == {grid.experiment_path}


def test_a_class_is_stepped_and_saved() -> None:
    class Growing(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.value = 0

        def step(self) -> dict[str, Any]:
            self.value += self.config["by"]
            return {"value": self.value, "done": self.iteration >= 3}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {"value": self.value}

        def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.value = checkpoint["value"]

    grid = search(
        Growing,
        {"by": tune.grid_search([1, 5])},
        checkpoint_config=paceline.air.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
        metric="value",
        mode="max",
    )
    assert [column(result, "value") for result in grid] == [[1, 2, 3, 4], [5, 10, 15, 20]]
    best = grid.get_best_result()
    assert best.checkpoint is not None
    assert best.checkpoint.to_dict()["value"] == 20
    assert best.config == {"by": 5}


def test_parameters_resources_and_registered_names() -> None:
    def train(config: dict[str, Any], table: list[int]) -> dict[str, Any]:
        resources = session.get_trial_resources()
        assert resources is not None
        return {"score": table[config["row"]], "cpus": resources.required_resources["CPU"]}

    whole = tune.with_resources(tune.with_parameters(train, table=[7, 8, 9]), {"CPU": 2})
    tune.register_trainable("a table", whole)
    grid = search("a table", {"row": tune.grid_search([2, 0, 1])})
    assert [result.metrics["score"] for result in grid] == [9, 7, 8]
    assert [result.metrics["cpus"] for result in grid] == [2, 2, 2]


def test_a_second_fit_is_an_experiment_of_its_own() -> None:
    made = tuner(lambda config: {"x": config["x"]}, {"x": tune.grid_search([1, 2])}, name="same")
    first, second = made.fit(), made.fit()
    assert first.experiment_path == second.experiment_path
    assert {result.path for result in first}.isdisjoint({result.path for result in second})
    assert made.get_results() is second
    assert [result.metrics["x"] for result in first] == [1, 2]


# -- when it ends -----------------------------------------------------------------------------


def stepping(marks: Marks, steps: int = 10) -> Any:
    """Leaves word of every step, before it is reported."""

    def train(config: dict[str, Any]) -> None:
        for step in range(1, steps + 1):
            marks.say("step", step=step, trial=session.get_trial_id())
            session.report({"step": step})

    return train


class StopsAt(Stopper):
    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, trial_id: str, result: Any) -> bool:
        return bool(result["step"] >= self.step)

    def stop_all(self) -> bool:
        return False


@pytest.mark.parametrize(
    "stop",
    [{"training_iteration": 3}, lambda trial_id, row: row["step"] == 3, StopsAt(3), MaximumIterationStopper(3)],
    ids=["dict", "function", "stopper", "iterations"],
)
def test_no_step_is_taken_after_a_stop(tmp_path: Path, stop: Any) -> None:
    marks = Marks(tmp_path / "marks")
    grid = search(stepping(marks), num_samples=3, stop=stop)
    for result in grid:
        assert column(result, "step") == [1, 2, 3]
        steps = [mark["step"] for mark in marks.read("step", trial=result.metrics["trial_id"])]
        assert steps == [1, 2, 3]
    assert grid.num_terminated == 3


def test_a_stopper_may_end_everything(tmp_path: Path) -> None:
    class Enough(Stopper):
        rows = 0

        def __call__(self, trial_id: str, result: Any) -> bool:
            self.rows += 1
            return False

        def stop_all(self) -> bool:
            return self.rows >= 5

    marks = Marks(tmp_path / "marks")
    grid = search(stepping(marks, steps=100_000), num_samples=50, max_concurrent_trials=2, stop=Enough())
    assert len(grid) == 2
    assert grid.num_terminated == 2
    for result in grid:
        reported = marks.read("step", trial=result.metrics["trial_id"])
        assert len(reported) == result.metrics["step"] < 100_000


def test_samples_without_end_are_ended_by_a_stopper() -> None:
    class Found(Stopper):
        seen = 0

        def __call__(self, trial_id: str, result: Any) -> bool:
            self.seen = max(self.seen, int(trial_id.split("_")[1]))
            return False

        def stop_all(self) -> bool:
            return self.seen >= 6

    space = {"x": tune.uniform(0, 1)}
    grid = search(lambda config: {"x": config["x"]}, space, num_samples=-1, stop=Found(), max_concurrent_trials=2)
    assert 7 <= len(grid) <= 9
    assert grid.num_terminated == len(grid)


def test_a_time_budget_ends_trials_well_and_starts_no_more(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        marks = Marks(tmp_path / "marks")
        step = 0
        while True:
            step += 1
            marks.say("step", step=step, trial=session.get_trial_id())
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    search(lambda config: {"step": 0})  # from now on a trial starts in no time
    grid = search(train, num_samples=20, max_concurrent_trials=2, time_budget_s=1.5)
    assert len(grid) == 2
    assert grid.num_terminated == 2
    for result in grid:
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict()["step"] == result.metrics["step"]
        taken = Marks(tmp_path / "marks").read("step", trial=result.metrics["trial_id"])
        assert taken[-1]["step"] == result.metrics["step"]


def test_a_trial_that_says_nothing_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def silent(config: dict[str, Any]) -> None:
        pass

    results = Tuner(silent, run_config=RunConfig(storage_path=str(tmp_path))).fit()
    assert results.num_terminated == 1
    assert re.search(r"silent_\w+_00000.*report\(\)", " ".join(capsys.readouterr().out.split()))


# -- failures ---------------------------------------------------------------------------------


def test_a_failed_trial_harms_no_other() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        session.report({"score": 0})
        if config["x"] == 2:
            raise ValueError("two is too much")
        return {"score": config["x"]}

    grid = tuner(train, {"x": tune.grid_search([1, 2, 3])}, metric="score", mode="max").fit()
    assert [result.error is None for result in grid] == [True, False, True]
    assert (grid.num_errors, grid.num_terminated) == (1, 2)
    assert "two is too much" in str(grid.errors[0])
    assert grid.errors[0].trial_id == grid[1].metrics["trial_id"]  # type: ignore[attr-defined]
    assert grid.get_best_result().config == {"x": 3}


def test_a_retry_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint else 0
        for step in range(start + 1, 6):
            session.report({"step": step, "start": start}, checkpoint=Checkpoint.from_dict({"step": step}))
            if step == 3 and Marks(tmp_path / "marks").claim(f"failure of {config['x']}"):
                raise RuntimeError("once")

    grid = search(train, {"x": tune.grid_search([1, 2])}, failure_config=FailureConfig(max_failures=1))
    for result in grid:
        assert column(result, "step") == [1, 2, 3, 4, 5]
        assert column(result, "start") == [0, 0, 0, 3, 3]


def failing_third(marks: Marks) -> Any:
    def train(config: dict[str, Any]) -> None:
        marks.say("began", x=config["x"])
        if config["x"] == 2:
            raise ValueError("two is too much")
        for step in range(1_000_000):
            session.report({"step": step})
            if config["x"] == 0:
                return

    return train


def test_fail_fast_ends_the_others_and_starts_no_more(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    space = {"x": tune.grid_search([0, 1, 2, 3, 4, 5])}
    made = tuner(failing_third(marks), space, max_concurrent_trials=2, failure_config=FailureConfig(fail_fast=True))
    grid = made.fit()
    assert grid.num_errors == 1
    assert [outcome.status for outcome in grid.outcomes] == ["finished", "interrupted", "failed"]
    assert sorted(mark["x"] for mark in marks.read("began")) == [0, 1, 2]


def test_fail_fast_raise_gives_the_trials_own_error(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    space = {"x": tune.grid_search([0, 1, 2, 3])}
    made = tuner(failing_third(marks), space, max_concurrent_trials=2, failure_config=FailureConfig(fail_fast="raise"))
    with pytest.raises(Exception, match="two is too much") as raised:
        made.fit()
    causes = [raised.value, raised.value.__cause__]
    assert any(type(cause) is ValueError for cause in causes)
    assert sorted(mark["x"] for mark in marks.read("began")) == [0, 1, 2]


def test_a_search_without_end_of_which_nothing_works_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(config: dict[str, Any]) -> None:
        raise KeyError("lr")

    results = Tuner(
        broken, tune_config=TuneConfig(num_samples=-1), run_config=RunConfig(storage_path=str(tmp_path), verbose=1)
    ).fit()
    assert 10 <= len(results.errors) <= 20
    assert re.search(r"first \d+ trials failed", " ".join(capsys.readouterr().out.split()))


# -- names and places -------------------------------------------------------------------------


def test_names_of_trials_and_directories() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"name": session.get_trial_name(), "dir": session.get_trial_dir()}

    grid = search(
        train,
        {"x": tune.grid_search([1, 2])},
        name="named",
        trial_name_creator=lambda trial: f"with_x_{trial.config['x']}",
        trial_dirname_creator=lambda trial: f"x={trial.config['x']}/odd",
    )
    assert [result.metrics["name"] for result in grid] == ["with_x_1", "with_x_2"]
    for result in grid:
        directory = Path(result.metrics["dir"])
        assert directory == Path(str(result.path))
        assert directory.parent == Path(grid.experiment_path)
        assert directory.parent.name == "named"
        assert directory.name.startswith(f"x={config_of(result)['x']}")
        assert (directory / "params.json").is_file()


def test_trials_start_in_a_directory_of_their_own_unless_told_not_to() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"cwd": os.getcwd()}

    own = search(train, num_samples=2)
    assert len({result.metrics["cwd"] for result in own}) == 2
    assert all(Path(result.metrics["cwd"]).is_relative_to(str(result.path)) for result in own)
    shared = search(train, num_samples=2, chdir_to_trial_dir=False)
    assert {result.metrics["cwd"] for result in shared} == {os.getcwd()}


def test_verbose_0_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        print("from a trial")
        return {"x": 1}

    search(train, num_samples=2)
    assert capfd.readouterr() == ("", "")


def test_the_inline_engine_runs_one_trial_after_the_other_in_this_process(tmp_path: Path) -> None:
    overlap = Overlap(tmp_path / "marks")

    def train(config: dict[str, Any]) -> dict[str, Any]:
        overlap.enter()
        for step in range(3):
            session.report({"pid": os.getpid(), "step": step})
        overlap.leave()
        return {"pid": os.getpid(), "x": config["x"]}

    grid = search(train, {"x": tune.grid_search([1, 2, 3])}, engine="inline")
    assert {result.metrics["pid"] for result in grid} == {os.getpid()}
    assert [result.metrics["x"] for result in grid] == [1, 2, 3]
    assert overlap.most == 1


# -- beside each other ------------------------------------------------------------------------


def test_two_tuners_in_two_threads() -> None:
    grids: dict[str, Any] = {}

    def run(name: str) -> None:
        space = {"x": tune.grid_search([1, 2, 3, 4])}
        grids[name] = search(lambda config: {"score": config["x"], "of": name}, space, name=name)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(grids) == ["one", "two"]
    for name, grid in grids.items():
        assert [result.metrics["score"] for result in grid] == [1, 2, 3, 4]
        assert {result.metrics["of"] for result in grid} == {name}


def test_a_tuner_inside_a_trial(tmp_path: Path) -> None:
    def inner(config: dict[str, Any]) -> dict[str, Any]:
        return {"score": config["y"] * 2}

    def outer(config: dict[str, Any]) -> dict[str, Any]:
        space = {"y": tune.grid_search([config["x"], config["x"] + 1])}
        run_config = RunConfig(verbose=0, storage_path=str(tmp_path / "inner"))
        grid = Tuner(inner, param_space=space, run_config=run_config, tune_config=TuneConfig("max", "score")).fit()
        return {"best": grid.get_best_result().metrics["score"], "trials": len(grid)}

    grid = search(outer, {"x": tune.grid_search([1, 10])})
    assert [(result.metrics["best"], result.metrics["trials"]) for result in grid] == [(4, 2), (22, 2)]
