"""Checkpoints written in the background: their order, every rank, and what can go wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, session
from paceline.air.errors import TrainingFailedError
from paceline.testing.invariants import check_run
from tests.train.quick import quick_trainer

ASYNC = CheckpointConfig(async_save=True)


def report_many(config: dict[str, Any]) -> None:
    for step in range(config["steps"]):
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def test_a_write_that_fails_ends_the_run_instead_of_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_FAULT", "after_stage_fsync:rank=0:raise=OSError")
    trainer = quick_trainer(
        report_many,
        config={"steps": 50},
        checkpoint_config=ASYNC,
        failure_config=FailureConfig(max_failures=3),
    )
    with pytest.raises(TrainingFailedError, match="injected") as caught:
        trainer.fit()
    cause = caught.value.root_cause
    assert cause is not None
    assert cause.kind == "storage"
    assert len(caught.value.failures) == 1
    result = caught.value.result
    assert result is not None
    assert result.log_dir is not None
    check_run(result.log_dir)


def reduce_with_a_late_rank(config: dict[str, Any]) -> None:
    if session.get_world_rank() == 1:
        # Rank 0's checkpoint is staged and announced long before its row is complete.
        while not any(Path(session.get_trial_dir() or "").glob(".checkpoint_*/MANIFEST.json")):
            os.sched_yield()
    session.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({"step": 1}), reduce={"loss": "mean"})


def test_a_checkpoint_that_is_ready_before_its_row_waits_for_it() -> None:
    result = quick_trainer(reduce_with_a_late_rank, config={}, checkpoint_config=ASYNC).fit()
    assert result.metrics["loss"] == 1.0
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 1


def fail_while_writing(config: dict[str, Any]) -> None:
    if session.get_world_rank() == 0:
        session.report({}, checkpoint=Checkpoint.from_dict({"weights": bytes(120_000_000)}))
        raise ValueError("the cause")
    session.report({}, checkpoint=Checkpoint.from_dict({}))
    while session.get_checkpoint() is None:
        os.sched_yield()
    raise ConnectionError("a later consequence")


def test_the_error_does_not_wait_for_the_writer() -> None:
    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(fail_while_writing, config={}, checkpoint_config=ASYNC).fit()
    cause = caught.value.root_cause
    assert cause is not None
    assert cause.message == "ValueError: the cause"


def crash_after_an_own_clock(config: dict[str, Any]) -> None:
    if session.get_checkpoint() is None:
        session.report({"time_total_s": "1 h"}, checkpoint=Checkpoint.from_dict({}))
        raise RuntimeError("once")


def test_a_key_of_the_users_own_does_not_harm_a_retry() -> None:
    result = quick_trainer(
        crash_after_an_own_clock, inline=True, config={}, failure_config=FailureConfig(max_failures=1)
    ).fit()
    assert result.attempts == 2


@pytest.mark.parametrize("form", [pytest.param("dict", marks=pytest.mark.slow), "directory"])
def test_background_checkpoints_are_all_there_in_order(form: str) -> None:
    def loop(config: dict[str, Any]) -> None:
        for step in range(6):
            if config["form"] == "dict":
                checkpoint = Checkpoint.from_dict({"step": step})
            else:
                Path("scratch").mkdir()
                Path("scratch", "step.txt").write_text(str(step))
                checkpoint = Checkpoint.from_directory("scratch")
            session.report({"step": step}, checkpoint=checkpoint)
            if session.get_world_rank() != 0 and Path("scratch").exists():
                Path("scratch", "step.txt").unlink()
                Path("scratch").rmdir()

    result = quick_trainer(loop, config={"form": form}, checkpoint_config=CheckpointConfig(async_save=True)).fit()
    check_run(result.path, result=result, iterations=6, attempts=1)
    assert [checkpoint.number for checkpoint, _ in result.best_checkpoints] == list(range(6))
    assert [row["step"] for _, row in result.best_checkpoints] == list(range(6))
    for step, (checkpoint, _) in enumerate(result.best_checkpoints):
        with checkpoint.as_directory() as directory:
            found = checkpoint.to_dict()["step"] if form == "dict" else int(Path(directory, "step.txt").read_text())
        assert found == step


def test_background_checkpoints_reach_every_rank() -> None:
    def loop() -> None:
        for step in range(4):
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
        session.report({"last": 1}, reduce={"last": "sum"})  # all ranks have saved; at most two are in flight
        newest = session.get_checkpoint()
        assert newest is not None
        assert newest.to_dict()["step"] >= 1

    result = quick_trainer(loop, checkpoint_config=CheckpointConfig(async_save=True, num_to_keep=2)).fit()
    check_run(result.path, result=result, iterations=5)


def test_background_saving_stops_where_it_was_asked_to() -> None:
    def loop() -> None:
        for step in range(10):
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    result = quick_trainer(loop, stop={"step": 3}, checkpoint_config=CheckpointConfig(async_save=True)).fit()
    check_run(result.path, result=result, iterations=4)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 3
