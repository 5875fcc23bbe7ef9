"""Checkpoints are validated by workers of their own while training continues."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import train, tune
from paceline.air import Checkpoint, CheckpointConfig, DatasetConfig, Result, RunConfig, ScalingConfig
from paceline.air.errors import ConfigError, RestoreError, TrainingFailedError
from paceline.data import from_items
from paceline.run import failure_policy
from paceline.run.records import AttemptStarted, Validated
from paceline.testing.processes import Driver, Marks, wait_for
from paceline.train import DataParallelTrainer, ValidationConfig, ValidationTask
from paceline.tune import TuneConfig, Tuner
from paceline.tune.schedulers import FIFOScheduler
from tests.train.validating import check_metrics, records_of, run_of, said_at_the_end, trainer

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path / "marks")


def places(tmp_path: Path, marks: Marks) -> dict[str, str]:
    return {"storage": str(tmp_path / "results"), "marks": str(marks.directory)}


def one_worker(loop: Any, tmp_path: Path, **arguments: Any) -> DataParallelTrainer:
    run_config = RunConfig(storage_path=str(tmp_path / "results"), verbose=0, **arguments.pop("run", {}))
    return DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=run_config, **arguments)


def save_once() -> None:
    train.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({"a": 1}), validation=True)


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_metrics_join_the_row_and_rank_the_checkpoint(tmp_path: Path, marks: Marks, engine: str) -> None:
    result = trainer(**places(tmp_path, marks), engine=engine, keep=1).fit()
    check_metrics(result)
    best, metrics = result.best_checkpoints[-1]
    assert best.to_dict()["step"] == 2
    assert metrics["validation"]["error"] == 0
    assert {each for each in os.listdir(result.path) if each.startswith("checkpoint_")} == {
        "checkpoint_000001",  # the best
        "checkpoint_000003",  # the newest
    }
    assert result.get_best_checkpoint("validation/error", "min") == best
    assert not result.warnings
    assert not (Path(result.path) / "validation_000001").exists()


def driving(tmp_path: Path, marks: Marks, **more: Any) -> Driver:
    """A driver process that a test can kill."""
    program = ["-m", "tests.train.validating", json.dumps({**places(tmp_path, marks), **more})]
    return Driver(program, output=tmp_path / "driver.txt", cwd=PROJECT)


def test_training_continues_meanwhile_and_the_end_waits(tmp_path: Path, marks: Marks) -> None:
    with driving(tmp_path, marks, train_stops=[2], validation_stops=[1, 4], keep=1) as driver:
        marks.wait("validating", step=1)
        marks.open_gate("train-2")
        (trained,) = marks.wait("trained")  # with the first validation still at work
        assert [mark["step"] for mark in marks.read("validating")] == [1]
        saved = [name for name in trained["checkpoints"] if name.startswith("checkpoint_")]
        assert saved == [f"checkpoint_{number:06d}" for number in range(4)], "none goes before its score is known"
        marks.open_gate("validate-1")
        marks.wait("validating", step=4)
        assert not records_of(run_of(tmp_path)).last_end
        marks.open_gate("validate-4")
        assert driver.wait() == 0
    check_metrics(Result.from_path(run_of(tmp_path)))


def test_several_at_a_time(tmp_path: Path, marks: Marks) -> None:
    with driving(tmp_path, marks, validation_stops=[1, 2, 3], max_concurrent=2, steps=3) as driver:
        marks.wait("validating", 2)
        assert [mark["step"] for mark in marks.read("validating")] in ([1, 2], [2, 1])
        marks.open_gate("validate-2")
        marks.wait("validating", step=3)
        marks.open_gate("validate-1")
        marks.open_gate("validate-3")
        assert driver.wait() == 0
    check_metrics(Result.from_path(run_of(tmp_path)), steps=3)


# -- drivers and workers that die ------------------------------------------------------------


def test_killed_driver(tmp_path: Path, marks: Marks) -> None:
    """One validation is at work and others wait; the training stands after two more steps than are validated."""
    with driving(tmp_path, marks, train_stops=[4], validation_stops=[2], keep=1) as driver:
        marks.wait("stands", before=4)
        (found,) = marks.wait("validating", step=2)
        driver.kill()
        wait_for(lambda: not Path(f"/proc/{found['pid']}").exists(), "the end of the validation worker")
    marks.open_gate("train-4")
    marks.open_gate("validate-2")
    result = trainer(**places(tmp_path, marks), restore=str(run_of(tmp_path)), train_stops=[4]).fit()
    check_metrics(result)
    assert [mark["step"] for mark in marks.read("validating")].count(1) == 1, "what was done is not done again"
    assert result.best_checkpoints[-1][0].to_dict()["step"] == 2


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGINT])
def test_driver_that_ends_while_it_waits_for_validations(tmp_path: Path, marks: Marks, ends: signal.Signals) -> None:
    """The training is over: the next driver only validates."""
    with driving(tmp_path, marks, validation_stops=[3]) as driver:
        marks.wait("validating", step=3)
        marks.wait("trained")
        wait_for(lambda: records_of(run_of(tmp_path)).training_ended, "the end of the training")
        driver.send(ends)
        assert driver.wait() != 0
        if ends is signal.SIGINT:
            assert "checkpoint_000002, checkpoint_000003" in said_at_the_end(run_of(tmp_path))
    marks.open_gate("validate-3")
    check_metrics(trainer(**places(tmp_path, marks), restore=str(run_of(tmp_path))).fit())
    assert len(marks.read("training")) == 1


def test_killed_training_worker(tmp_path: Path, marks: Marks) -> None:
    """The validation under way goes on, and its metrics belong to the row that survives."""
    with driving(tmp_path, marks, train_stops=[3], validation_stops=[2], max_failures=1) as driver:
        marks.wait("validating", step=2)
        marks.wait("stands", before=3)
        os.kill(marks.read("training")[0]["pid"], signal.SIGKILL)
        marks.wait("training", 2)
        marks.open_gate("train-3")
        marks.open_gate("validate-2")
        assert driver.wait() == 0
    result = Result.from_path(run_of(tmp_path))
    check_metrics(result)
    assert result.attempts == 2
    assert [mark["step"] for mark in marks.read("validating")] == [1, 2, 3, 4]
    attempts = [record.attempt for record in records_of(result.path) if isinstance(record, Validated)]
    assert attempts == [0, 0, 1, 1]


@pytest.mark.parametrize("retries", [0, 1])
def test_killed_validation_worker(tmp_path: Path, marks: Marks, retries: int) -> None:
    with driving(tmp_path, marks, validation_stops=[2], max_concurrent=2, retries=retries) as driver:
        (found,) = marks.wait("validating", step=2)
        os.kill(found["pid"], signal.SIGKILL)
        if retries:
            marks.wait("validating", 2, step=2)
            marks.open_gate("validate-2")
        assert driver.wait() == 0
    result = Result.from_path(run_of(tmp_path))
    assert result.attempts == 1
    said = said_at_the_end(result.path)
    assert "The validation of checkpoint_000001 (iteration 2) failed: rank 0: " in said
    if retries:
        check_metrics(result)
    else:
        assert result.metrics_dataframe["validation/step"].fillna(0).tolist() == [1, 0, 3, 4]
        assert result.best_checkpoints[0][0].to_dict()["step"] == 2, "no score is the worst"


# -- failures of the function ----------------------------------------------------------------


def fails(checkpoint: Checkpoint) -> dict[str, float]:
    raise ValueError("wrong labels")


def test_a_failure_is_a_warning(tmp_path: Path) -> None:
    result = one_worker(save_once, tmp_path, validation_config=ValidationConfig(fails)).fit()
    (warning,) = result.warnings
    assert "ValueError: wrong labels" in warning
    assert "in fails" in warning, "the user's own line"
    assert re.search(r"logs/validation_000000_rank_0\.log$", warning)
    assert "validation" not in result.metrics


def test_a_failure_fails_the_run_if_that_is_asked_for(tmp_path: Path) -> None:
    def loop() -> None:
        save_once()
        while True:  # until the failed validation stops it
            train.report({"loss": 0.5})

    failing = one_worker(loop, tmp_path, validation_config=ValidationConfig(fails, fail_run=True))
    with pytest.raises(TrainingFailedError, match="the validation of checkpoint_000000 failed: ValueError") as caught:
        failing.fit()
    assert caught.value.result.checkpoint.to_dict()["a"] == 1
    assert Result.from_path(caught.value.result.path).status == "failed"


def test_a_validation_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    def hangs(checkpoint: Checkpoint) -> dict[str, float]:
        while True:
            pass

    result = one_worker(save_once, tmp_path, validation_config=ValidationConfig(hangs, timeout_s=0.2)).fit()
    assert "timeout_s=0.2" in result.warnings[0]


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (lambda checkpoint: None, "must return a dict of metrics, not NoneType"),
        (lambda checkpoint: {"a": object()}, "is not a plain value"),
        (lambda checkpoint: train.report({"a": 1}), "return the metrics as a dict instead"),
    ],
)
def test_what_a_validation_cannot_return(tmp_path: Path, returns: Any, message: str) -> None:
    result = one_worker(save_once, tmp_path, validation_config=ValidationConfig(returns)).fit()
    assert message in result.warnings[0]


def test_a_missing_score_is_told(tmp_path: Path) -> None:
    scored = {"checkpoint_config": CheckpointConfig(checkpoint_score_attribute="validation/accuracy")}
    config = ValidationConfig(lambda checkpoint: {"error": 1.0})
    result = one_worker(save_once, tmp_path, run=scored, validation_config=config).fit()
    assert result.warnings == [
        "checkpoint_score_attribute 'validation/accuracy' was not reported with checkpoint 0; such checkpoints rank "
        "worst."
    ]


def fails_at_first(checkpoint: Checkpoint, *, marks: Marks, times: int) -> dict[str, int]:
    """The first checkpoint's validation fails so many times."""
    if checkpoint.to_dict()["step"] == 1:
        marks.say("tried")
        if len(marks.read("tried")) <= times:
            raise ValueError("flaky")
    return {"fine": 1}


def test_a_retry_while_another_waits_for_room(tmp_path: Path, marks: Marks) -> None:
    """There is never room for three workers beside the others: they take the training's room in turn."""

    def loop() -> None:
        for step in (1, 2, 3):
            train.report({"a": step}, checkpoint=Checkpoint.from_dict({"step": step}), validation=True)

    config = ValidationConfig(
        partial(fails_at_first, marks=marks, times=1),
        scaling_config=ScalingConfig(num_workers=3),
        max_concurrent=2,
        max_failures=1,
    )
    with paceline.init(num_cpus=2):
        result = one_worker(loop, tmp_path, validation_config=config).fit()
    assert result.metrics_dataframe["validation/fine"].tolist() == [1, 1, 1]


def test_retries_without_limit(tmp_path: Path, marks: Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_policy, "_LONGEST_DELAY_S", 0.0)
    config = ValidationConfig(partial(fails_at_first, marks=marks, times=4), max_failures=-1)
    result = one_worker(
        lambda: train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"step": 1}), validation=True),
        tmp_path,
        validation_config=config,
    ).fit()
    assert result.metrics["validation"] == {"fine": 1}
    assert len(marks.read("tried")) == 5


def test_a_run_that_a_validation_failed_is_not_finished_by_a_restore(tmp_path: Path) -> None:
    """The validation is made again: it may have failed for a reason that is gone."""

    def fails_at_the_end(checkpoint: Checkpoint) -> dict[str, float]:
        wait_for(lambda: records_of(run_of(tmp_path)).training_ended, "the end of the training")
        return fails(checkpoint)

    failing = ValidationConfig(fails_at_the_end, fail_run=True)
    with pytest.raises(TrainingFailedError, match="wrong labels"):
        one_worker(save_once, tmp_path, validation_config=failing).fit()
    path = run_of(tmp_path)
    with pytest.raises(TrainingFailedError, match="wrong labels"):
        DataParallelTrainer.restore(path, save_once, validation_config=failing).fit()
    assert Result.from_path(path).status == "failed"
    fixed = ValidationConfig(lambda checkpoint: {"fine": 1}, fail_run=True)
    result = DataParallelTrainer.restore(path, save_once, validation_config=fixed).fit()
    assert result.status == "finished"
    assert result.metrics["validation"] == {"fine": 1}
    assert len(result.metrics_dataframe) == 1


# -- what is wrong with the call -------------------------------------------------------------


def batched(checkpoint: Checkpoint, batches: int, *, device: str = "cpu") -> dict[str, int]:
    return {"batches": batches}


SAVED = Checkpoint.from_dict({"a": 1})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train.report({"a": 1}, validation=True), "pass checkpoint="),
        (lambda: train.report({"a": 1}, checkpoint=SAVED, validation=True), "without batches: pass .*'batches'"),
        (lambda: train.report({"a": 1}, checkpoint=SAVED, validation=0.5), "pass True or a ValidationTask"),
        (lambda: train.report({"a": 1}, checkpoint=SAVED, validation=ValidationTask), "with parentheses"),
        (lambda: asked({"batch": 1}), "no argument 'batch': did you mean batches"),
        (lambda: asked({"batches": object()}), "is not a plain value"),
        (lambda: asked({"batches": 1, "api_token": "x"}, batched), "no argument 'api_token'"),
        (lambda: asked({"batches": {"api_token": "x"}}), "is a secret"),
        (lambda: asked({"batches": 1}, metrics={"validation/loss": 1}), "'validation/loss' has the name under which"),
    ],
)
def test_mistakes_are_raised_at_the_users_line(tmp_path: Path, call: Any, message: str) -> None:
    failing = one_worker(call, tmp_path, validation_config=ValidationConfig(batched))
    with pytest.raises(TrainingFailedError, match=message):
        failing.fit()


def asked(kwargs: dict[str, Any], _: Any = None, metrics: dict[str, Any] | None = None) -> None:
    train.report(metrics or {"a": 1}, checkpoint=SAVED, validation=ValidationTask(kwargs))


def test_validation_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailedError, match=r"no validation_config=ValidationConfig\(fn="):
        one_worker(save_once, tmp_path).fit()


def test_arguments_of_a_task(tmp_path: Path) -> None:
    config = ValidationConfig(batched)
    result = one_worker(lambda: asked({"batches": 7}), tmp_path, validation_config=config).fit()
    assert result.metrics["validation"] == {"batches": 7}


def test_arguments_that_are_not_finite_survive_a_restore(tmp_path: Path) -> None:
    def loop() -> None:
        task = ValidationTask({"batches": math.inf})
        train.report({"a": 1}, checkpoint=SAVED, validation=task)

    def fails_with(checkpoint: Checkpoint, batches: float) -> dict[str, float]:
        raise ValueError(f"batches is {batches}")

    with pytest.raises(TrainingFailedError, match="batches is inf"):
        one_worker(loop, tmp_path, validation_config=ValidationConfig(fails_with, fail_run=True)).fit()
    config = ValidationConfig(lambda checkpoint, batches: {"batches": batches}, fail_run=True)
    result = DataParallelTrainer.restore(run_of(tmp_path), loop, validation_config=config).fit()
    assert result.metrics["validation"] == {"batches": math.inf}


def test_restore_needs_the_function_again(tmp_path: Path, marks: Marks) -> None:
    result = trainer(**places(tmp_path, marks), steps=1).fit()
    with pytest.raises(RestoreError, match="pass validation_config="):
        DataParallelTrainer.restore(result.path, save_once)


def test_resume_needs_the_function_again(tmp_path: Path) -> None:
    """Without it, the validations that are pending would never be made."""
    failing = ValidationConfig(fails, fail_run=True)
    with pytest.raises(TrainingFailedError):
        one_worker(save_once, tmp_path, run={"name": "again"}, validation_config=failing).fit()
    with pytest.raises(RestoreError, match=r"validation_config= \(given there, missing here\)"):
        one_worker(save_once, tmp_path, run={"name": "again"}).fit(resume="auto")


def test_pending_validations_are_not_given_up_by_a_run_that_cannot_make_them(tmp_path: Path, marks: Marks) -> None:
    """Whatever way leads to it: here, a driver that does not say that the run had a validation_config."""
    with driving(tmp_path, marks, validation_stops=[1], steps=1) as driver:
        marks.wait("validating", step=1)
        wait_for(lambda: records_of(run_of(tmp_path)).training_ended, "the end of the training")
        driver.kill()
    bare = one_worker(save_once, tmp_path)
    bare._continue(str(run_of(tmp_path)), {})
    with pytest.raises(RestoreError, match="still to be validated: checkpoint_000000"):
        bare.fit()
    marks.open_gate("validate-1")
    check_metrics(trainer(**places(tmp_path, marks), restore=str(run_of(tmp_path))).fit(), steps=1)


def test_checkpoints_in_memory_cannot_be_validated(tmp_path: Path) -> None:
    in_memory = {"checkpoint_config": CheckpointConfig(num_to_keep=0)}
    with pytest.raises(ConfigError, match="num_to_keep"):
        one_worker(save_once, tmp_path, run=in_memory, validation_config=ValidationConfig(fails))


class ReportingTrainer(DataParallelTrainer):
    _reports_by_itself = True


def test_trainers_that_report_by_themselves_reject_it() -> None:
    with pytest.raises(ConfigError, match=r"ReportingTrainer calls report\(\) for you"):
        ReportingTrainer(save_once, validation_config=ValidationConfig(fails))


# -- what a validation worker has ------------------------------------------------------------


def whole_set(checkpoint: Checkpoint) -> dict[str, Any]:
    context = train.get_context()
    rows = sorted(row["id"] for row in train.get_dataset_shard("held_out").iter_rows())
    train.collective.barrier()
    assert train.get_checkpoint() == checkpoint
    return {
        "rank": context.get_world_rank(),
        "workers": context.get_world_size(),
        "rows": len(rows),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "niceness": os.nice(0),
    }


def test_workers_data_and_manners(tmp_path: Path) -> None:
    config = ValidationConfig(
        whole_set,
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 2}),
        datasets={"held_out": from_items([{"id": number} for number in range(7)])},
    )
    before = os.nice(0)
    result = one_worker(save_once, tmp_path, validation_config=config).fit()
    assert not result.warnings
    assert result.metrics["validation"] == {
        "rank": 0,
        "workers": 2,
        "rows": 4,  # of 7: none is left out
        "threads": 2,
        "niceness": min(19, before + 10),
    }


def test_batches_that_are_filled_up(tmp_path: Path) -> None:
    """All workers have equally many, so that they can do something together in each."""

    def count(checkpoint: Checkpoint) -> dict[str, int]:
        batches = rows = 0
        for batch in train.get_dataset_shard("held_out").iter_batches(batch_size=2, batch_format="numpy"):
            train.collective.barrier()
            batches, rows = batches + 1, rows + int(batch["__valid__"].sum())
        return {"batches": batches, "rows": rows}

    config = ValidationConfig(
        count,
        scaling_config=ScalingConfig(num_workers=2),
        datasets={"held_out": from_items([{"id": number} for number in range(5)])},
        dataset_config={"held_out": DatasetConfig(uneven="pad_mask")},
    )
    result = one_worker(save_once, tmp_path, validation_config=config).fit()
    assert result.metrics["validation"] == {"batches": 2, "rows": 3}, result.warnings


def test_a_dataset_config_of_no_dataset(tmp_path: Path) -> None:
    config = ValidationConfig(
        fails, datasets={"held_out": from_items([{"id": 1}])}, dataset_config={"heldout": DatasetConfig()}
    )
    with pytest.raises(ConfigError, match="Did you mean 'held_out'"):
        one_worker(save_once, tmp_path, validation_config=config)


def test_the_backend_connects_validation_workers_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from paceline.train.torch import TorchTrainer

    def agree(checkpoint: Checkpoint) -> dict[str, float]:
        total = torch.tensor([float(train.get_context().get_world_rank() + 1)])
        torch.distributed.all_reduce(total)
        return {"total": total.item()}

    config = ValidationConfig(agree, scaling_config=ScalingConfig(num_workers=2))
    result = TorchTrainer(
        save_once,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
        validation_config=config,
    ).fit()
    assert result.metrics["validation"] == {"total": 3.0}, result.warnings


def test_async_save(tmp_path: Path, marks: Marks) -> None:
    def loop() -> None:
        for step in range(1, 4):
            train.report({"a": step}, checkpoint=Checkpoint.from_dict({"step": step}), validation=step != 2)

    saves = {"checkpoint_config": CheckpointConfig(async_save=True)}
    config = ValidationConfig(lambda checkpoint: {"step": checkpoint.to_dict()["step"]})
    result = one_worker(loop, tmp_path, run=saves, validation_config=config).fit()
    assert result.metrics_dataframe["validation/step"].fillna(0).tolist() == [1, 0, 3]


def test_stoppers_and_callbacks_do_not_see_validations(tmp_path: Path, marks: Marks) -> None:
    seen: list[dict[str, Any]] = []

    def stop(trial_id: str, row: dict[str, Any]) -> bool:
        seen.append(row)
        return len(seen) == 3

    def loop() -> None:
        for step in range(9):
            train.report({"a": step}, checkpoint=SAVED, validation=True)

    config = ValidationConfig(lambda checkpoint: {"fine": 1})
    result = one_worker(loop, tmp_path, run={"stop": stop}, validation_config=config).fit()
    assert result.metrics_dataframe["validation/fine"].tolist() == [1, 1, 1]
    assert not any("validation" in row for row in seen)


def test_validations_of_trials(tmp_path: Path, marks: Marks) -> None:
    def loop(config: dict[str, Any]) -> None:
        train.report({"loss": config["x"]}, checkpoint=Checkpoint.from_dict({"x": config["x"]}), validation=True)

    trained = DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=1),
        validation_config=ValidationConfig(lambda checkpoint: {"twice": 2 * checkpoint.to_dict()["x"]}),
    )
    seen: list[dict[str, Any]] = []

    class Watching(FIFOScheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            seen.append(result)
            return super().on_trial_result(controller, trial, result)

        def on_trial_complete(self, controller: Any, trial: Any, result: dict[str, Any]) -> None:
            seen.append(result)

    grid = Tuner(
        trained,
        param_space={"train_loop_config": {"x": tune.grid_search([1, 2, 3])}},
        tune_config=TuneConfig(metric="loss", mode="min", scheduler=Watching()),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert [result.metrics["validation"]["twice"] for result in grid] == [2, 4, 6]
    assert grid.get_best_result("validation/twice", "max").metrics["loss"] == 3
    assert len(seen) == 6
    assert not any("validation" in row for row in seen)


def test_too_slow_validations_are_told(tmp_path: Path, marks: Marks) -> None:
    with driving(tmp_path, marks, steps=12, train_stops=["end"], validation_stops=[1]) as driver:
        marks.wait("trained")
        marks.open_gate("train-end")
        marks.open_gate("validate-1")
        assert driver.wait() == 0
    result = Result.from_path(run_of(tmp_path))
    check_metrics(result, steps=12)
    assert "11 checkpoints are waiting for validation" in said_at_the_end(result.path)
    assert sum(isinstance(each, AttemptStarted) for each in records_of(result.path)) == 1


@pytest.mark.parametrize("gpus", [1, 2])
def test_gpus(tmp_path: Path, gpus: int) -> None:
    """Validation takes a GPU that the training leaves, or waits until the training has ended."""

    def loop() -> None:
        save_once()
        train.report({"gpu": os.environ["CUDA_VISIBLE_DEVICES"]})

    def validate(checkpoint: Checkpoint) -> dict[str, str]:
        return {"gpu": os.environ["CUDA_VISIBLE_DEVICES"]}

    one_gpu = ScalingConfig(num_workers=1, use_gpu=True)
    with paceline.init(num_gpus=gpus):
        result = DataParallelTrainer(
            loop,
            scaling_config=one_gpu,
            run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
            validation_config=ValidationConfig(validate, scaling_config=one_gpu),
        ).fit()
    assert not result.warnings
    assert result.metrics["gpu"] == "0"
    assert result.metrics_dataframe["validation/gpu"][0] in (["0"] if gpus == 1 else ["0", "1"])
