"""What fit() gives back: a Result, the same one read from disk, and errors one can act on."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, session
from paceline.air.errors import (
    RemoteError,
    RestoreError,
    StorageError,
    TrainingFailedError,
    WorkerDiedError,
)
from paceline.testing.invariants import check_run, result_file_iterations
from paceline.testing.processes import Marks
from tests.train.quick import quick_trainer


class OutOfDataError(RuntimeError):
    """An exception of the user's own, defined where the trainer is made."""

    def __init__(self, shard: int) -> None:
        super().__init__(shard)
        self.shard = shard


def train_four(config: dict[str, Any]) -> None:
    """Four rows, checkpoints with the even ones; may fail before a row."""
    newest = session.get_checkpoint()
    rank = session.get_world_rank()
    for step in range(newest.to_dict()["step"] + 1 if newest else 0, 4):
        fails_here = step == config.get("fail_at") and rank == config.get("fail_on", 1)
        if fails_here and (config.get("once") is None or Marks(config["once"]).claim("failure")):
            raise OutOfDataError(7)
        metrics = {"step": step, "loss": [2.0, 1.0, 3.0, 0.5][step], "nested": {"rank": rank}}
        session.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}) if step % 2 == 0 else None)
        if config.get("together"):
            session.report({"step": step, "together": 1}, reduce={"together": "sum"})


def assert_same_from_path(result: Result, path: str | Path | None = None) -> Result:
    """Reading the directory gives what fit() gave."""
    read = Result.from_path(path or result.path)
    assert read.metrics == result.metrics
    assert read.checkpoint == result.checkpoint
    assert read.best_checkpoints == result.best_checkpoints
    assert (read.log_dir, read.path) == (result.log_dir, result.path)
    assert read.rank_metrics == result.rank_metrics
    assert (read.attempts, read.status) == (result.attempts, result.status)
    assert type(read.error).__name__ == type(result.error).__name__
    assert str(read.error) == str(result.error)
    assert read.config == result.config
    assert read.metrics_dataframe.equals(result.metrics_dataframe)
    assert read.rank_dataframe.equals(result.rank_dataframe)
    return read


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Of a run that nothing happened to. Look, but don't touch."""
    storage = str(tmp_path_factory.mktemp("results"))
    return quick_trainer(train_four, config={"lr": 0.1}, name="experiment", storage_path=storage).fit()


def test_the_result_of_a_run(finished: Result) -> None:
    result = finished
    check_run(result.path, result=result, iterations=4, attempts=1)
    assert result.log_dir == Path(result.path)
    assert Path(result.path).parent.name == "experiment"
    assert Path(result.path).name == f"DataParallelTrainer_{result.metrics['trial_id']}_0"
    assert (result.error, result.status, result.attempts) == (None, "finished", 1)
    assert (result.metrics["step"], result.metrics["done"], result.metrics["training_iteration"]) == (3, True, 4)
    assert result.checkpoint is not None
    assert result.checkpoint.get_internal_representation() == (
        "local_path", f"{result.path}/checkpoint_000001",
    )  # fmt: skip
    assert [row["step"] for _, row in result.best_checkpoints] == [0, 2]
    best = result.get_best_checkpoint("loss", "min")
    assert best is not None
    assert best.to_dict()["step"] == 0
    assert result.metrics_dataframe["nested/rank"].tolist() == [0] * 4
    assert result.rank_metrics[1]["nested"] == {"rank": 1}
    assert "loss" in repr(result)
    assert_same_from_path(result)
    assert_same_from_path(result, Path(result.path).parent)


def test_what_is_in_the_trial_directory(finished: Result) -> None:
    directory = Path(finished.path)
    assert {path.name for path in directory.iterdir() if not path.name.startswith("events.")} == {
        "journal.jsonl", "lock", "params.json", "result.json", "progress.csv", "logs",
        "rank_0", "rank_1", "checkpoint_000000", "checkpoint_000001",
    }  # fmt: skip
    assert json.loads((directory / "params.json").read_text()) == {"train_loop_config": {"lr": 0.1}}
    assert result_file_iterations(directory) == [1, 2, 3, 4]
    header, *rows = (directory / "progress.csv").read_text().splitlines()
    steps = [row.split(",")[header.split(",").index("step")] for row in rows]
    assert steps == ["0", "1", "2", "3"]
    assert sorted(path.name for path in (directory / "logs").iterdir()) == ["rank_0.log", "rank_1.log"]
    assert not [path for path in directory.rglob("*.pkl") if path.parent.parent != directory]


def test_what_workers_print_is_kept() -> None:
    def loop() -> None:
        print(f"hello from {session.get_world_rank()}")
        os.write(2, b"and from a library in C\n")
        session.report({})

    result = quick_trainer(loop).fit()
    for rank in (0, 1):
        text = Path(result.path, "logs", f"rank_{rank}.log").read_text()
        assert f"hello from {rank}\n" in text
        assert "and from a library in C" in text


# -- failures -----------------------------------------------------------------------------


def talk_and_train_four(config: dict[str, Any]) -> None:
    print("a log without content would not be named")
    train_four(config)


def test_the_error_names_rank_line_and_log() -> None:
    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(talk_and_train_four, config={"fail_at": 3}).fit()
    error = caught.value
    text = str(error)
    assert re.match(r".*rank 1: OutOfDataError: 7", text)
    assert "raise OutOfDataError(7)" in text
    assert f'File "{__file__}", line {train_four.__code__.co_firstlineno + 7}, in train_four' in text
    assert error.result is not None
    log = Path(error.result.path) / "logs" / "rank_1.log"
    assert str(log) in text.splitlines()[-3]  # before the line that says how to continue
    assert log.exists()
    assert (Path(error.result.path) / "error.txt").read_text().strip() == text
    assert type(error.__cause__) is OutOfDataError
    assert error.__cause__.shard == 7


def test_a_local_class_comes_as_text() -> None:
    def loop() -> None:
        class LocalError(Exception):
            pass

        raise LocalError("of the function")

    with pytest.raises(TrainingFailedError, match=r"LocalError.*of the function") as caught:
        quick_trainer(loop, workers=1).fit()
    assert type(caught.value.__cause__) is RemoteError


def test_an_exception_with_a_cause_of_its_own_is_told_whole() -> None:
    def loop() -> None:
        try:
            dict[str, int]()["missing"]
        except KeyError as error:
            raise ValueError("no such column") from error

    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(loop, workers=1).fit()
    assert "KeyError: 'missing'" in str(caught.value)
    assert "no such column" in str(caught.value)


def test_a_dead_worker_is_named() -> None:
    with pytest.raises(TrainingFailedError, match="rank 1") as caught:
        quick_trainer(lambda: os._exit(3) if session.get_world_rank() else session.report({})).fit()
    assert isinstance(caught.value.__cause__, WorkerDiedError)


@pytest.mark.parametrize("fail_at", [0, pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_failed_run_still_has_a_result(fail_at: int) -> None:
    config = {"fail_at": fail_at, "fail_on": 0, "together": True}
    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(train_four, config=config).fit()
    result = caught.value.result
    assert result is not None
    assert result.error is caught.value
    assert result.status == "failed"
    assert result.metrics.get("step") == (fail_at - 1 if fail_at else None)
    assert (result.checkpoint is not None) is (fail_at > 0)
    check_run(result.path, error=caught.value, iterations=2 * fail_at, attempts=1)
    if fail_at:
        assert sorted(result.rank_metrics) == [0, 1]
        assert_same_from_path(result)


def test_the_error_can_be_had_without_raising_it() -> None:
    config = {"fail_at": 2, "fail_on": 0}
    result = quick_trainer(train_four, inline=True, config=config).fit(raise_on_error=False)
    assert isinstance(result.error, TrainingFailedError)
    assert result.error.result is result
    assert isinstance(result.error.__cause__, OutOfDataError)
    assert "error=TrainingFailedError" in repr(result)
    assert Result.from_path(result.path).error is not None


def test_a_retry_shows_only_in_the_number_of_attempts(tmp_path: Path) -> None:
    config = {"fail_at": 3, "once": str(tmp_path / "marks")}
    result = quick_trainer(train_four, config=config, failure_config=FailureConfig(max_failures=1)).fit()
    check_run(result.path, result=result, iterations=4, attempts=2)
    assert result.error is None
    assert result.metrics["iterations_since_restore"] == 1
    assert not (Path(result.path) / "error.txt").exists()
    assert_same_from_path(result)


def test_a_retry_that_reaches_less_than_the_attempt_before_it() -> None:
    """Attempt 0 reports three rows with a checkpoint at the first, attempt 1 none: one row survives."""

    def loop() -> None:
        if session.get_checkpoint() is not None:
            raise ValueError("straight away")
        session.report({"row": 1}, checkpoint=Checkpoint.from_dict({}))
        session.report({"row": 2}, reduce={"row": "mean"})
        session.report({"row": 3}, reduce={"row": "mean"})
        raise ValueError("after three rows")

    result = quick_trainer(loop, failure_config=FailureConfig(max_failures=1)).fit(raise_on_error=False)
    check_run(result.path, result=result, iterations=1, attempts=2)
    assert result.metrics["row"] == 1
    assert result.rank_metrics == {0: {"row": 1}, 1: {"row": 1}}
    assert_same_from_path(result)


def test_a_failure_while_a_checkpoint_is_stored_leaves_all_records_agreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.storage import commit

    def refuse(*_: Any) -> None:
        raise StorageError(28, "no space left")

    monkeypatch.setattr(commit, "commit", refuse)
    result = quick_trainer(train_four, config={}, failure_config=FailureConfig(max_failures=5)).fit(
        raise_on_error=False
    )
    check_run(result.path, result=result, iterations=1, attempts=1)
    assert isinstance(result.error, TrainingFailedError)
    assert isinstance(result.error.__cause__, StorageError)
    assert result.checkpoint is None
    assert_same_from_path(result)


# -- from disk ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "no such directory"])
def test_a_directory_without_a_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(RestoreError, match=r"journal\.jsonl"):
        Result.from_path(tmp_path / name)


def test_a_copy_elsewhere_is_as_good(finished: Result, tmp_path: Path) -> None:
    read = Result.from_path(shutil.copytree(finished.path, tmp_path / "copy"))
    assert read.metrics == finished.metrics
    assert read.checkpoint is not None
    assert read.checkpoint.path == str(tmp_path / "copy" / "checkpoint_000001")
    assert read.checkpoint.to_dict()["step"] == 2


# -- which checkpoints stay ---------------------------------------------------------------


def names(result: Result) -> list[str]:
    return sorted(path.name for path in Path(result.path).glob("checkpoint_*"))


@pytest.mark.parametrize(
    ("checkpoints", "on_disk", "best"),
    [
        ({}, [0, 1, 2, 3], [0, 1, 2, 3]),
        ({"num_to_keep": 1}, [3], [3]),
        ({"num_to_keep": 2, "checkpoint_score_attribute": "loss"}, [1, 2, 3], [1, 2]),
        ({"num_to_keep": 1, "checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}, [0, 3], [0]),
    ],
)
def test_the_best_stay_and_the_newest_beside_them(
    checkpoints: dict[str, Any], on_disk: list[int], best: list[int]
) -> None:
    def loop() -> None:
        for loss in (1, 3, 4, 2):
            session.report({"loss": loss}, checkpoint=Checkpoint.from_dict({"loss": loss}))

    result = quick_trainer(loop, inline=True, checkpoint_config=CheckpointConfig(**checkpoints)).fit()
    check_run(result.path, result=result, iterations=4)
    assert names(result) == [f"checkpoint_{number:06d}" for number in on_disk]
    assert [checkpoint.number for checkpoint, _ in result.best_checkpoints] == best
    assert result.checkpoint is not None
    assert result.checkpoint.number == 3
    assert_same_from_path(result)


def test_a_score_that_is_never_reported_is_warned_about_once() -> None:
    def loop() -> None:
        for _ in range(3):
            session.report({}, checkpoint=Checkpoint.from_dict({}))

    config = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="accuracy")
    result = quick_trainer(loop, inline=True, checkpoint_config=config).fit()
    assert len([warning for warning in result.warnings if "'accuracy'" in warning]) == 1


# -- checkpoints that are not written to disk ---------------------------------------------

IN_MEMORY = CheckpointConfig(num_to_keep=0)


def count_in_memory(config: dict[str, Any]) -> None:
    newest = session.get_checkpoint()
    for step in range(newest.to_dict()["step"] + 1 if newest else 0, 4):
        if step == 3 and session.get_world_rank() == 0 and Marks(config["marks"]).claim("failure"):
            raise OutOfDataError(1)
        mine = {"step": step, "rank": session.get_world_rank()}
        if config["form"] == "dict":
            session.report(mine, checkpoint=Checkpoint.from_dict(mine))
        else:
            directory = Checkpoint.from_dict(mine).to_directory()
            session.report(mine, checkpoint=Checkpoint.from_directory(directory))
            os.rename(directory, f"{directory}-used")  # it may be reused or removed
        found = session.get_checkpoint()
        assert found is not None
        assert found.to_dict()["rank"] == 0  # the run's checkpoint is rank 0's, on every rank
        assert found.to_dict()["step"] >= step
        assert found.to_dict()["_current_checkpoint_id"] == found.to_dict()["step"]


@pytest.mark.parametrize("form", ["dict", pytest.param("directory", marks=pytest.mark.slow)])
def test_in_memory_nothing_is_on_disk_and_a_retry_goes_on(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    config = {"marks": str(tmp_path / "marks"), "form": form}
    result = quick_trainer(
        count_in_memory, config=config, checkpoint_config=IN_MEMORY, failure_config=FailureConfig(max_failures=1)
    ).fit()
    check_run(result.path, result=result, iterations=4, attempts=2)
    assert names(result) == []
    assert result.best_checkpoints == []
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 3
    assert result.metrics["iterations_since_restore"] == 1  # it went on after the third
    assert Result.from_path(result.path).checkpoint is None


@pytest.mark.parametrize("retries", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_in_memory_a_background_save_is_none(tmp_path: Path, retries: int) -> None:
    config = {"marks": str(tmp_path / "marks"), "form": "dict"}
    if retries == 0:
        Marks(config["marks"]).claim("failure")
    result = quick_trainer(
        count_in_memory,
        config=config,
        checkpoint_config=CheckpointConfig(num_to_keep=0, async_save=True),
        failure_config=FailureConfig(max_failures=retries),
    ).fit()
    check_run(result.path, result=result, iterations=4, attempts=1 + retries)


def test_in_memory_a_checkpoint_of_a_finished_run_can_be_passed_on() -> None:
    def loop() -> None:
        newest = session.get_checkpoint()
        n = newest.to_dict()["n"] + 1 if newest else 0
        session.report({"n": n}, checkpoint=Checkpoint.from_dict({"n": n}))

    first = quick_trainer(loop, inline=True, checkpoint_config=IN_MEMORY).fit()
    second = quick_trainer(loop, workers=1, resume=first.checkpoint).fit()
    assert second.metrics["n"] == 1
    assert second.checkpoint is not None
    assert second.checkpoint.number == 1


@pytest.mark.filterwarnings("ignore:.*outside a training run:UserWarning")  # said once per process
def test_nothing_of_the_session_is_left_in_the_driver() -> None:
    quick_trainer(lambda: session.report({}), inline=True).fit()
    assert (session.get_trial_dir(), session.get_trial_id(), session.get_checkpoint()) == (None, None, None)
