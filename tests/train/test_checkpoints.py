"""Checkpoints of several ranks: whose is the run's, and who finds it."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, session
from paceline.air.errors import SerializationError, TrainingFailedError
from paceline.testing.invariants import check_run
from tests.train.quick import quick_trainer


def test_every_rank_finds_the_checkpoint_that_was_just_reported() -> None:
    def loop() -> None:
        rank = session.get_world_rank()
        for step in range(3):
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step, "rank": rank}))
            newest = session.get_checkpoint()
            assert newest is not None
            found = newest.to_dict()
            assert found["rank"] == 0
            assert found["step"] >= step  # a rank that lags behind may find a newer one
            assert found["_current_checkpoint_id"] == found["step"]
        session.report({"found": found["step"]})

    result = quick_trainer(loop).fit()
    assert [metrics["found"] for metrics in result.rank_metrics.values()] == [2, 2]


def test_a_checkpoint_of_rank_zero_alone() -> None:
    def loop() -> None:
        for step in range(3):
            checkpoint = Checkpoint.from_dict({"step": step}) if session.get_world_rank() == 0 else None
            session.report({"step": step}, checkpoint=checkpoint)

    result = quick_trainer(loop).fit()
    check_run(result.path, result=result, iterations=3)
    assert len(result.best_checkpoints) == 3


def test_a_checkpoint_of_another_rank_is_not_the_runs() -> None:
    def loop() -> None:
        checkpoint = Checkpoint.from_dict({"mine": 1}) if session.get_world_rank() == 1 else None
        session.report({}, checkpoint=checkpoint)
        assert session.get_checkpoint() is None

    result = quick_trainer(loop).fit()
    check_run(result.path, result=result, iterations=1)
    assert result.checkpoint is None
    assert any(re.search("[Cc]heckpoint.*rank 0", warning) for warning in result.warnings)


@pytest.mark.parametrize("async_save", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_committed_checkpoint_may_be_reported_again(async_save: bool, tmp_path: Path) -> None:
    """Its directory is never taken away, also where directories are taken over."""

    def loop() -> None:
        given = session.get_checkpoint()
        for _ in range(3):
            session.report({}, checkpoint=given)
        session.report({"barrier": 1}, reduce={"barrier": "sum"})
        newest = session.get_checkpoint()
        assert newest is not None
        session.report({}, checkpoint=newest)

    earlier = quick_trainer(
        lambda: session.report({}, checkpoint=Checkpoint.from_dict({"kept": "content"})), inline=True
    ).fit()
    plain = Checkpoint.from_dict({"kept": "content"}).to_directory(tmp_path / "plain")
    for resume in (earlier.checkpoint, plain):
        result = quick_trainer(loop, resume=resume, checkpoint_config=CheckpointConfig(async_save=async_save)).fit()
        check_run(result.path, result=result, iterations=5)
        assert [checkpoint.to_dict()["kept"] for checkpoint, _ in result.best_checkpoints] == ["content"] * 4
    check_run(earlier.path, result=earlier, iterations=1)
    assert Checkpoint.from_directory(plain).to_dict()["kept"] == "content"


def save_own_files(config: dict[str, Any]) -> None:
    """Each rank saves a file of its own, and one whose content is the same or not."""
    rank = session.get_world_rank()
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory:  # in the trial: a killed worker removes nothing
        Path(directory, f"part_{rank}.txt").write_text(str(rank))
        Path(directory, "common.txt").write_text("same" if config["agree"] else str(rank))
        session.report({}, checkpoint=Checkpoint.from_directory(directory))
    newest = session.get_checkpoint()
    assert newest is not None
    with newest.as_directory() as merged:
        session.report({"files": sorted(path.name for path in Path(merged).glob("*.txt"))})


def test_files_of_all_ranks_are_merged() -> None:
    result = quick_trainer(
        save_own_files, config={"agree": True}, checkpoint_config=CheckpointConfig(keep_all_ranks=True)
    ).fit()
    check_run(result.path, result=result, iterations=2)
    merged = ["common.txt", "part_0.txt", "part_1.txt"]
    assert [metrics["files"] for metrics in result.rank_metrics.values()] == [merged] * 2


def test_files_of_two_ranks_that_differ_are_refused() -> None:
    with pytest.raises(TrainingFailedError, match=r"common\.txt") as caught:
        quick_trainer(
            save_own_files, config={"agree": False}, checkpoint_config=CheckpointConfig(keep_all_ranks=True)
        ).fit()
    result = caught.value.result
    assert result is not None
    assert result.checkpoint is None
    check_run(result.path, error=caught.value, attempts=1)


@pytest.mark.parametrize("without", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_merging_waits_for_no_rank_that_brings_nothing(without: int) -> None:
    def loop(config: dict[str, Any]) -> None:
        rank = session.get_world_rank()
        checkpoint = None if rank == config["without"] else Checkpoint.from_dict({"rank": rank})
        session.report({}, checkpoint=checkpoint)

    trainer = quick_trainer(loop, config={"without": without}, checkpoint_config=CheckpointConfig(keep_all_ranks=True))
    with pytest.raises(TrainingFailedError, match=f"rank {without}"):
        trainer.fit()


def refuse_one(config: dict[str, Any]) -> None:
    for step in range(3):
        if step == 1 and session.get_world_rank() == 0:
            with pytest.raises(SerializationError):
                session.report({}, checkpoint=Checkpoint.from_dict({"lock": threading.Lock()}))
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
    newest = session.get_checkpoint()
    assert newest is not None
    session.report({"newest": newest.to_dict()["step"], "path": str(newest.path)})


def test_a_refused_checkpoint_takes_no_number() -> None:
    result = quick_trainer(refuse_one, config={}).fit()
    assert [metrics["path"] for metrics in result.rank_metrics.values()] == [str(result.checkpoint.path)] * 2  # type: ignore[union-attr]
    assert Path(result.metrics["path"]).name == "checkpoint_000002"
