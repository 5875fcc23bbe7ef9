"""Runs of earlier versions, kept as files: they can be read and continued forever."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, RunConfig, session
from paceline.run.history import load_result
from paceline.run.records import FORMAT, VERSION, AttemptStarted
from paceline.train import DataParallelTrainer

RUNS = Path(__file__).parent / "fixtures" / "journals_1"


@pytest.mark.parametrize(
    ("name", "status", "attempts", "rows", "kept"),
    [
        ("run_with_retry", "finished", 2, 6, [0, 1, 2]),
        ("run_num_to_keep", "finished", 1, 8, [6, 7]),
        ("run_failed", "failed", 1, 3, [0]),
        ("run_restored", "finished", 2, 6, [0, 1, 2]),
        ("run_killed", "unfinished", 2, 6, [0, 1]),
    ],
)
def test_reading(name: str, status: str, attempts: int, rows: int, kept: list[int]) -> None:
    result = load_result(RUNS / name)
    assert (result.status, result.attempts, result.warnings) == (status, attempts, [])
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["training_iteration"]) == list(range(1, rows + 1))
    assert list(result.metrics_dataframe["loss"]) == [1 / step for step in range(1, rows + 1)]
    assert result.metrics["hostname"] == "example-host"
    assert result.metrics["config"]["train_loop_config"]["every"] == (1 if name == "run_num_to_keep" else 2)
    assert result.metrics["bad"] != result.metrics["bad"], "NaN came back as something else"
    assert [checkpoint.number for checkpoint, _ in result.best_checkpoints] == kept
    assert result.checkpoint is not None
    assert result.checkpoint.number == kept[-1]
    assert (result.error is not None) == (status == "failed")
    if result.error is not None:
        assert str(result.error).startswith("Training failed: rank 0: ValueError: step 3 failed once")


def six_steps() -> None:
    checkpoint = session.get_checkpoint()
    for step in range((checkpoint.to_dict()["step"] if checkpoint else 0) + 1, 7):
        session.report({"loss": 1 / step, "again": True}, checkpoint=Checkpoint.from_dict({"step": step}))


@pytest.mark.parametrize(("name", "done"), [("run_failed", 2), ("run_killed", 4)])
def test_continuing(name: str, done: int, tmp_path: Path) -> None:
    run = Path(shutil.copytree(RUNS / name, tmp_path / "run"))
    before = (run / "journal.jsonl").read_bytes()
    quiet: dict[str, Any] = {"run_config": RunConfig(name="failed", verbose=0, engine="inline")}
    result = DataParallelTrainer.restore(run, six_steps, train_loop_config={}, **quiet).fit()
    whole = before[: before.rfind(b"\n") + 1]
    assert (run / "journal.jsonl").read_bytes().startswith(whole), "what an earlier version wrote was changed"
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["training_iteration"]) == [1, 2, 3, 4, 5, 6]
    assert list(result.metrics_dataframe["again"].notna()) == [step > done for step in range(1, 7)]
    assert load_result(run).status == "finished"
    attempts = [record for record in FORMAT.read(run / "journal.jsonl") if isinstance(record, AttemptStarted)]
    assert attempts[-1].version == VERSION, "a continued journal says which version continued it"
