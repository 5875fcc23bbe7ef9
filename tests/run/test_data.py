"""A checkpoint waits until all ranks have said where they are in the data, and for no one who never will."""

from __future__ import annotations

import time
import weakref
from pathlib import Path
from typing import Any

import pytest

import paceline.data
from paceline.air import Checkpoint, CheckpointConfig, session
from paceline.air.errors import TrainingFailedError
from paceline.data.ingest.prepare import prepared
from paceline.data.iterator import DataIterator
from paceline.engine.choose import choose_engine
from paceline.run import data as run_data
from paceline.run.callbacks import Callback
from paceline.run.data import DataPositions
from paceline.run.run import Run
from paceline.run.spec import Trial
from paceline.testing.invariants import check_run
from paceline.train import DataParallelTrainer
from tests.train.quick import quick_trainer

TRAIN = {"train": True}


def place(rank: int, batches: int, workers: int = 2) -> dict[str, Any]:
    """What a rank says that has handed out so many batches of 10 of its share of 100 rows."""
    shard = DataIterator(prepared("train", paceline.data.range(100), split=True), rank, workers)
    passing = iter(shard.iter_batches(batch_size=10))
    for _ in range(batches):
        next(passing)
    return {"train": shard.state_dict()}


def yielded(stored: dict[str, Any]) -> list[int]:
    rows: list[int] = stored["train"]["legs"][-1][1]
    return rows


class Watched(dict[str, Any]):
    """A place that lets go of no more than a weak reference, which a dict cannot have."""


def note_watched(positions: DataPositions, rank: int, index: int, said: dict[str, Any], **how: bool) -> Any:
    """Note a place; the reference tells whether it is still kept."""
    watched = Watched(said)
    positions.note(rank, index, watched, **how)  # type: ignore[arg-type]
    return weakref.ref(watched)


def test_a_checkpoint_is_complete_when_all_ranks_have_told_their_place() -> None:
    positions = DataPositions(2, 0, TRAIN)
    positions.note(0, 1, place(0, 2), with_checkpoint=True)
    assert not positions.complete(1)
    assert positions.missing(1) == [1]
    positions.note(1, 1, place(1, 3), with_checkpoint=False)
    assert positions.complete(1)
    assert yielded(positions.take(1)) == [20, 30]


def test_what_a_rank_ahead_said_is_kept_until_rank_0_gets_there() -> None:
    positions = DataPositions(2, 0, TRAIN)
    said = [note_watched(positions, 1, index, place(1, index), with_checkpoint=True) for index in (1, 2, 3)]
    positions.note(0, 1, place(0, 1), with_checkpoint=False)
    positions.note(0, 2, place(0, 2), with_checkpoint=True)
    assert positions.complete(2)
    assert yielded(positions.take(2)) == [20, 20]
    assert [kept() is not None for kept in said] == [False, False, True], "what nobody needs any more is not kept"


def test_several_checkpoints_may_wait_for_a_rank_that_is_behind() -> None:
    positions = DataPositions(2, 5, TRAIN)
    said = [note_watched(positions, 0, index, place(0, index - 5), with_checkpoint=index != 7) for index in (6, 7, 8)]
    positions.note(1, 6, place(1, 1), with_checkpoint=False)
    assert positions.complete(6)
    assert not positions.complete(8)
    assert yielded(positions.take(6)) == [10, 10]
    for index in (7, 8):
        positions.note(1, index, place(1, index - 5), with_checkpoint=False)
    assert yielded(positions.take(8)) == [30, 30]
    assert [kept() for kept in said] == [None, None, None]


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    positions = DataPositions(2, 0, TRAIN)
    positions.note(0, 1, place(0, 2), with_checkpoint=True)
    positions.finish(1)
    assert positions.complete(1)
    assert yielded(positions.take(1)) == [20, 20]


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_data, "time", clock)
    return clock


def test_a_rank_that_never_reports_delays_the_first_checkpoint_only(clock: Clock) -> None:
    positions = DataPositions(2, 0, TRAIN)
    positions.note(0, 1, place(0, 1), with_checkpoint=True)
    clock.now += run_data.SILENT_WAIT_S - 1
    assert not positions.complete(1)
    clock.now += 1
    assert positions.complete(1)
    assert yielded(positions.take(1)) == [10, 10]
    positions.note(0, 2, place(0, 2), with_checkpoint=True)
    assert positions.complete(2)


def test_a_rank_that_has_reported_before_is_given_more_time(clock: Clock) -> None:
    positions = DataPositions(2, 0, TRAIN)
    positions.note(1, 1, place(1, 1), with_checkpoint=False)
    for index in (1, 2):
        positions.note(0, index, place(0, index), with_checkpoint=index == 2)
    clock.now += run_data.LATE_WAIT_S - 1
    assert not positions.complete(2)
    clock.now += 1
    assert positions.complete(2)


def only_rank_0_reports() -> None:
    shard = session.get_dataset_shard("train")
    for _ in shard.iter_batches(batch_size=10):
        if session.get_world_rank() == 0:
            session.report({"epoch": shard.epoch}, checkpoint=Checkpoint.from_dict({}))


@pytest.mark.parametrize("async_save", [False, True])
def test_a_run_in_which_only_rank_0_reports_keeps_its_checkpoints(
    monkeypatch: pytest.MonkeyPatch, async_save: bool
) -> None:
    monkeypatch.setattr(run_data, "SILENT_WAIT_S", 0.05)
    trainer = quick_trainer(only_rank_0_reports, checkpoint_config=CheckpointConfig(async_save=async_save))
    trainer.datasets = {"train": paceline.data.range(100)}
    result = trainer.fit()
    assert len(result.best_checkpoints) == 5
    told = [warning for warning in result.warnings if "place in the datasets" in warning]
    assert len(told) <= 1
    assert "rank 0 called report()" in " ".join(result.warnings)
    check_run(result.path, result=result)


class Marking(Callback):
    """Leaves a mark when the driver has seen the last row."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, result: Any, **info: Any) -> None:
        if result["training_iteration"] == 3:
            self.mark.touch()


def rank_1_fails_after_the_last_row_of_rank_0(config: dict[str, str]) -> None:
    for step in range(1, 4):
        if session.get_world_rank() == 1 and step == 3:
            while not Path(config["mark"]).exists():
                time.sleep(0.01)
            raise RuntimeError("too late")
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def late_failure(mark: Path, seen: Path, **settings: Any) -> DataParallelTrainer:
    """`seen` appears when the driver has rank 0's last row; rank 1 fails when `mark` does."""
    trainer = quick_trainer(
        rank_1_fails_after_the_last_row_of_rank_0,
        config={"mark": str(mark)},
        checkpoint_config=CheckpointConfig(async_save=True),
        callbacks=[Marking(seen)],
        **settings,
    )
    trainer.datasets = {"train": paceline.data.range(100)}
    return trainer


def test_a_rank_that_fails_while_the_run_stops_is_not_waited_for(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    trainer = late_failure(mark, mark, stop={"training_iteration": 3})
    began = time.monotonic()
    result = trainer.fit()
    assert time.monotonic() - began < run_data.LATE_WAIT_S
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 3
    assert "rank 1 failed while stopping" in " ".join(result.warnings)


def test_a_checkpoint_is_not_committed_without_the_position_of_a_rank_that_failed(tmp_path: Path) -> None:
    """The rows that this rank had not come to would never be read."""
    mark = tmp_path / "mark"
    trainer = late_failure(mark, mark)
    result = trainer.fit(raise_on_error=False)
    assert isinstance(result.error, TrainingFailedError)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 2


def test_nor_if_the_rank_fails_while_the_run_is_interrupted(tmp_path: Path) -> None:
    """Somebody will continue it from its checkpoint."""
    mark, seen = tmp_path / "mark", tmp_path / "seen"
    trainer = late_failure(mark, seen)
    run = Run.open(trainer.to_run_spec(), choose_engine("local"))
    while not seen.exists():
        run.step()
    run.stop.wanted = run.stop.interrupted = True
    run.step()  # From here on ranks are held at their next report.
    mark.touch()
    while not run.done:
        run.step()
    assert run.result is not None
    assert run.result.status == "interrupted"
    assert run.result.checkpoint is not None
    assert run.result.checkpoint.to_dict()["step"] == 2
