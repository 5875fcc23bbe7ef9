"""What tests of the checkpoint keeper do with checkpoints, and see of them."""

from __future__ import annotations

import shutil
from typing import Any

from paceline.air import Checkpoint
from paceline.air.errors import StorageError
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.messages import StagedCheckpoint
from paceline.run.records import FORMAT, Record
from paceline.storage.journal import Journal, read
from paceline.storage.run_dir import RunDir
from tests.run.fake_channel import session_setup
from tests.run.fake_channel import stager as make_stager


def stage(run_dir: RunDir, number: int, rank: int = 0, **files: str) -> StagedCheckpoint:
    """What a worker does before it reports."""
    scratch = run_dir.root / f"scratch-{rank}"
    scratch.mkdir()
    for name, content in {"model": "weights", **files}.items():
        (scratch / name).write_text(content)
    setup = session_setup(run_dir.root, next_number=number, world_rank=rank, keep_all_ranks=True)
    staged, _, _ = make_stager(setup).stage(Checkpoint.from_directory(str(scratch)), number + 1, {}, lambda: None)
    shutil.rmtree(scratch)
    assert staged is not None
    return staged


def commit(keeper: CheckpointKeeper, number: int, **row: Any) -> None:
    keeper.commit(stage(keeper.run_dir, number), {}, number + 1, row).check()


def retire(keeper: CheckpointKeeper, **given: Any) -> None:
    """Also wait until the background has done it."""
    keeper.retire(**given)
    keeper.background.deletions.wait()


def on_disk(run_dir: RunDir) -> list[int]:
    return [number for number, _ in run_dir.checkpoints()]


def state(journal: Journal) -> list[dict[str, Any]]:
    journal.flush()
    return list(read(journal.path))


def records(journal: Journal) -> list[Record]:
    journal.flush()
    return list(FORMAT.read(journal.path))


def refuse(*_: Any) -> None:
    raise StorageError(5, "not now")
