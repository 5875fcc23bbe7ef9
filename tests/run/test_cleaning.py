"""What is removed of a run; more of it, and on stores, in tests/cli/test_gc.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import RunLockedError
from paceline.run.cleaning import clean_run
from paceline.run.found_runs import summary_of
from paceline.run.records import ValidationRequested
from paceline.storage.journal import Journal
from paceline.storage.lock import RunLock
from paceline.storage.run_dir import RunDir
from paceline.train import DataParallelTrainer

SCORES = (3, 1, 2, 5, 4)


def steps() -> None:
    for score in SCORES:
        session.report({"score": score}, checkpoint=Checkpoint.from_dict({"score": score}))


def make(tmp_path: Path, **checkpoints: Any) -> RunDir:
    config = RunConfig(
        storage_path=str(tmp_path), verbose=0, engine="inline", checkpoint_config=CheckpointConfig(**checkpoints)
    )
    trainer = DataParallelTrainer(steps, scaling_config=ScalingConfig(num_workers=1), run_config=config)
    return RunDir(Path(trainer.fit().path))


def kept(run_dir: RunDir) -> list[int]:
    return [number for number, _ in run_dir.checkpoints()]


def test_the_best_and_the_newest_stay(tmp_path: Path) -> None:
    run_dir = make(tmp_path, checkpoint_score_attribute="score", checkpoint_score_order="max")
    removed = clean_run(str(run_dir.root), keep=1)
    assert kept(run_dir) == [3, 4]
    assert [Path(each.path).name for each in removed] == [f"checkpoint_{number:06d}" for number in range(3)]
    assert summary_of(run_dir.root).reached.best == {"score": 5}


def test_without_a_score_the_newest_stay(tmp_path: Path) -> None:
    run_dir = make(tmp_path)
    clean_run(str(run_dir.root), keep=2)
    assert kept(run_dir) == [3, 4]
    assert clean_run(str(run_dir.root), keep=9) == []


def test_without_keep_checkpoints_stay(tmp_path: Path) -> None:
    run_dir = make(tmp_path)
    before = run_dir.journal.read_bytes()
    assert clean_run(str(run_dir.root)) == []
    assert (kept(run_dir), run_dir.journal.read_bytes()) == ([0, 1, 2, 3, 4], before)


def test_a_locked_run_is_refused(tmp_path: Path) -> None:
    run_dir = make(tmp_path)
    with RunLock(run_dir.lock):
        for dry_run in (True, False):
            with pytest.raises(RunLockedError):
                clean_run(str(run_dir.root), keep=1, dry_run=dry_run)
    assert len(kept(run_dir)) == 5


def test_the_journal_speaks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed in the middle leaves a run that can be read: what is gone is known to be gone."""
    run_dir = make(tmp_path)

    def die(_path: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.run.cleaning.to_trash", die)
    with pytest.raises(KeyboardInterrupt):
        clean_run(str(run_dir.root), keep=1)
    assert summary_of(run_dir.root).reached.checkpoints == [4]
    monkeypatch.undo()
    clean_run(str(run_dir.root), keep=1)
    assert kept(run_dir) == [4]


def test_what_is_still_to_be_validated_stays(tmp_path: Path) -> None:
    run_dir = make(tmp_path, checkpoint_score_attribute="score", checkpoint_score_order="max")
    journal = Journal(run_dir.journal)
    journal.append(ValidationRequested(attempt=0, index=2, number=1, time=0.0))
    journal.close()
    clean_run(str(run_dir.root), keep=1)
    assert kept(run_dir) == [1, 3, 4]
