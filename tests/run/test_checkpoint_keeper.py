"""Committing, retiring and finding checkpoints, on a real directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from paceline.air import Checkpoint, CheckpointConfig
from paceline.air.errors import CheckpointCorruptError, CheckpointError
from paceline.air.manifest import read_manifest
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.messages import StagedCheckpoint
from paceline.run.rank_target import packed_in_memory
from paceline.run.records import CheckpointRetired
from paceline.storage import commit as storage_commit
from paceline.storage.journal import Journal
from paceline.storage.run_dir import RunDir
from tests.run.keeping import commit, on_disk, records, retire, stage, state


def test_a_commit_is_on_disk_and_in_the_journal(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(), run_dir, journal, attempt=2)
    commit(keeper, 0, loss=1.5)
    assert on_disk(run_dir) == [0]
    assert keeper.next_number == 1
    (record,) = state(journal)
    assert {key: record[key] for key in ("kind", "number", "iteration", "attempt")} == {
        "kind": "checkpoint", "number": 0, "iteration": 1, "attempt": 2,
    }  # fmt: skip
    assert record["row"]["loss"] == 1.5
    newest = keeper.newest_checkpoint()
    assert newest is not None
    assert newest.path == str(run_dir.checkpoint(0))


def test_the_old_one_goes_only_after_the_new_one_is_there(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal)
    commit(keeper, 0)
    retire(keeper)
    commit(keeper, 1)
    assert on_disk(run_dir) == [0, 1]
    retire(keeper)
    assert on_disk(run_dir) == [1]
    assert [(record["kind"], record["number"]) for record in state(journal)] == [
        ("checkpoint", 0), ("checkpoint", 1), ("delete", 0),
    ]  # fmt: skip
    assert [path.name for path in run_dir.root.glob(".trash-*")] == []


def test_the_best_and_the_newest_stay(run_dir: RunDir, journal: Journal) -> None:
    config = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    keeper = CheckpointKeeper(config, run_dir, journal)
    for number, loss in enumerate([1, 5, 2, 9]):
        commit(keeper, number, loss=loss)
        retire(keeper)
    assert on_disk(run_dir) == [0, 2, 3]
    assert [(checkpoint.number, row["loss"]) for checkpoint, row in keeper.best_checkpoints()] == [(2, 2), (0, 1)]


def test_what_a_slow_rank_may_be_reading_stays_until_it_has_gone_on(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal)
    for number in range(3):
        commit(keeper, number)
    retire(keeper, reached=[3, 1])  # the slow rank has reported as far as checkpoint 0
    assert on_disk(run_dir) == [0, 2]
    retire(keeper, reached=[3, 3])
    assert on_disk(run_dir) == [2]


def test_what_a_rank_saw_before_those_in_flight_were_committed_stays_too(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1, async_save=True), run_dir, journal)
    for number in range(4):
        commit(keeper, number)
    retire(keeper, reached=[5, 5])  # when they looked, 2 and 3 may have been in flight
    assert on_disk(run_dir) == [1, 2, 3]
    retire(keeper)
    assert on_disk(run_dir) == [3]


def test_what_cannot_be_deleted_is_tried_again(
    run_dir: RunDir, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal)
    commit(keeper, 0)
    commit(keeper, 1)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "not now")

    with monkeypatch.context() as broken:
        broken.setattr(storage_commit, "delete_tree", refuse)
        retire(keeper)
        retire(keeper)
    assert on_disk(run_dir) == [1]  # it stopped being a checkpoint all the same
    assert len(keeper.warnings) == 1
    assert len(list(run_dir.root.glob(".trash-*"))) == 1
    retire(keeper)
    assert list(run_dir.root.glob(".trash-*")) == []


def test_parts_of_other_ranks_are_merged(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(keep_all_ranks=True), run_dir, journal)
    parts = {1: stage(run_dir, 0, rank=1, shard_1="b")}
    keeper.commit(stage(run_dir, 0, shard_0="a"), parts, 1, {}).check()
    files = {path.name for path in run_dir.checkpoint(0).iterdir() if not path.name.startswith((".", "MANIFEST"))}
    assert files == {"model", "shard_0", "shard_1"}
    assert keeper.newest_valid() is not None
    run_dir.sweep()


def test_parts_that_contradict_each_other_are_refused(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(keep_all_ranks=True), run_dir, journal)
    with pytest.raises(CheckpointError, match="common"):
        keeper.commit(stage(run_dir, 0, common="a"), {1: stage(run_dir, 0, rank=1, common="b")}, 1, {}).check()
    assert on_disk(run_dir) == []


def test_a_damaged_checkpoint_is_set_aside(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(), run_dir, journal)
    for number in range(3):
        commit(keeper, number)
    (run_dir.checkpoint(2) / "model").write_text("weighty")
    newest = keeper.newest_valid()
    assert newest is not None
    assert newest.number == 1
    assert on_disk(run_dir) == [0, 1]
    assert (run_dir.root / "checkpoint_000002.corrupt").is_dir()
    assert "checkpoint_000002" in keeper.warnings[0]
    assert keeper.next_number == 3  # its number is not used again
    for number in range(2):
        (run_dir.checkpoint(number) / "model").unlink()
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint_000000\.corrupt.*resume_from_checkpoint"):
        keeper.newest_valid()


# -- another driver takes over ------------------------------------------------------------


def loaded(run_dir: RunDir, journal: Journal, config: CheckpointConfig | None = None) -> CheckpointKeeper:
    keeper = CheckpointKeeper(config or CheckpointConfig(), run_dir, journal)
    keeper.load(records(journal))
    return keeper


def test_what_was_committed_is_found_again(run_dir: RunDir, journal: Journal) -> None:
    config = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss")
    first = CheckpointKeeper(config, run_dir, journal)
    for number, loss in enumerate([3, 1, 2]):
        commit(first, number, loss=loss, config={})
        retire(first)
    second = loaded(run_dir, journal, config)
    assert second.best_checkpoints() == first.best_checkpoints()
    assert second.newest_checkpoint() == first.newest_checkpoint()
    assert second.next_number == 3


def test_a_deletion_that_had_begun_is_finished(run_dir: RunDir, journal: Journal) -> None:
    first = CheckpointKeeper(CheckpointConfig(), run_dir, journal)
    commit(first, 0)
    commit(first, 1)
    journal.append(CheckpointRetired(number=0))  # and then the driver died
    second = loaded(run_dir, journal)
    assert on_disk(run_dir) == [1]
    assert [kept.number for kept in second.committed] == [1]


def test_a_checkpoint_that_was_renamed_but_not_recorded_counts(run_dir: RunDir, journal: Journal) -> None:
    commit(CheckpointKeeper(CheckpointConfig(), run_dir, journal), 0)
    staged = stage(run_dir, 1)
    storage_commit.commit(Path(os.fsdecode(staged.path)), run_dir.checkpoint(1))
    second = loaded(run_dir, journal)
    assert [(kept.number, kept.iteration) for kept in second.committed] == [(0, 1), (1, 2)]
    assert second.next_number == 2


def test_numbers_of_deleted_checkpoints_are_not_used_again(run_dir: RunDir, journal: Journal) -> None:
    first = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal)
    for number in range(3):
        commit(first, number)
    retire(first)
    shutil.rmtree(run_dir.checkpoint(2))  # by hand
    assert loaded(run_dir, journal).next_number == 3


# -- in memory ----------------------------------------------------------------------------


def test_in_memory_only_the_newest_is_held(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=0), run_dir, journal)
    for number in range(2):
        attachment = packed_in_memory(Checkpoint.from_dict({"n": number}))
        keeper.commit(StagedCheckpoint(b"", number, 10), {}, number + 1, {}, in_memory=attachment).check()
        retire(keeper)
    newest = keeper.newest_checkpoint()
    keeper.close()
    assert keeper.newest_in_memory is None
    assert newest is not None
    assert newest.to_dict() == {"n": 1}  # what a result holds stays
    assert keeper.best_checkpoints() == []
    assert on_disk(run_dir) == []
    assert state(journal) == []


# -- starting from another run's checkpoint -----------------------------------------------


def test_numbers_go_on_after_a_given_checkpoint(run_dir: RunDir, journal: Journal, tmp_path: Path) -> None:
    first = CheckpointKeeper(CheckpointConfig(), run_dir, journal)
    first.next_number = 4
    commit(first, 4)
    given = first.newest_checkpoint()
    assert given is not None
    second = CheckpointKeeper(CheckpointConfig(), run_dir, journal)
    second.continue_after(given)
    assert second.next_number == 5
    second.continue_after(Checkpoint.from_dict({}))
    assert second.next_number == 0
    (run_dir.checkpoint(4) / "model").write_text("damaged")
    with pytest.raises(CheckpointCorruptError):
        second.continue_after(given)


def test_the_checkpoint_of_another_run_becomes_the_newest(run_dir: RunDir, journal: Journal, tmp_path: Path) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(), run_dir, journal)
    commit(keeper, 0)
    other_dir = RunDir(tmp_path / "other")
    other_dir.create()
    other = CheckpointKeeper(CheckpointConfig(num_to_keep=1), other_dir, Journal(other_dir.journal))
    other.commit(stage(other_dir, 0, model="better"), {}, 7, {"loss": 0.5}).check()
    newest = other.newest_checkpoint()
    assert newest is not None
    keeper.adopt(newest, 4, {"loss": 0.5}, "Trainer_4913f_00001").check()
    adopted = keeper.newest_valid()
    assert adopted is not None
    assert (adopted.number, adopted.iteration, adopted.row) == (1, 4, {"loss": 0.5})
    assert (run_dir.checkpoint(1) / "model").read_text() == "better"
    assert read_manifest(run_dir.checkpoint(1)).facts["copied_from"] == "Trainer_4913f_00001"
    again = CheckpointKeeper(CheckpointConfig(), run_dir, journal)
    again.load(records(journal))
    assert [(kept.number, kept.iteration) for kept in again.committed] == [(0, 1), (1, 4)]
    other.journal.close()


def test_a_checkpoint_that_is_being_copied_is_not_deleted(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal)
    commit(keeper, 0)
    release = keeper.pin(0)
    commit(keeper, 1)
    retire(keeper)
    assert on_disk(run_dir) == [0, 1]
    release()
    commit(keeper, 2)
    retire(keeper)
    assert on_disk(run_dir) == [2]


def test_a_copy_that_outlasts_the_run_deletes_what_it_was_made_of(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal)
    commit(keeper, 0)
    first, second = keeper.pin(0), keeper.pin(0)
    commit(keeper, 1)
    retire(keeper)
    assert [kept.number for kept in keeper.committed] == [1]  # nobody else shall begin to use the other
    keeper.close()
    first()
    first()
    assert on_disk(run_dir) == [0, 1]
    second()
    assert on_disk(run_dir) == [1]
    assert not run_dir.leftovers()


def test_what_was_copied_at_the_very_end_is_deleted_on_closing(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal)
    commit(keeper, 0)
    release = keeper.pin(0)
    commit(keeper, 1)
    retire(keeper)
    release()
    keeper.close()
    assert on_disk(run_dir) == [1]


def test_after_an_interruption_copies_leave_the_directory_to_the_next_driver(run_dir: RunDir, journal: Journal) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal)
    commit(keeper, 0)
    release = keeper.pin(0)
    commit(keeper, 1)
    retire(keeper)
    keeper.close(complete=False)
    release()
    assert on_disk(run_dir) == [0, 1]
    again = CheckpointKeeper(CheckpointConfig(num_to_keep=1), run_dir, journal)
    again.load(records(journal))
    assert on_disk(run_dir) == [1]
