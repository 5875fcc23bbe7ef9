"""The worker's half of a commit: foreground, background, memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint
from paceline.air.manifest import verify
from paceline.run.messages import CheckpointReady, InMemorySetup, StagedCheckpoint
from paceline.storage.commit import commit
from paceline.storage.run_dir import RunDir
from tests.run.fake_channel import FakeChannel, session_setup
from tests.run.fake_channel import stager as make_stager


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


def where(staged: StagedCheckpoint) -> Path:
    return Path(os.fsdecode(staged.path))


def never() -> None:
    raise AssertionError("nothing is to be waited for")


def a_directory(path: Path, content: str = "weights") -> Checkpoint:
    path.mkdir()
    (path / "model.txt").write_text(content)
    return Checkpoint.from_directory(str(path))


def test_in_the_foreground_the_content_is_safe_when_it_returns(tmp_path: Path, channel: FakeChannel) -> None:
    trial = tmp_path / "trial"
    trial.mkdir()
    stager = make_stager(session_setup(trial, next_number=3, attempt=2), channel)
    checkpoint = a_directory(tmp_path / "mine")
    staged, follows, attachments = stager.stage(checkpoint, 8, {"loss": 1}, never)
    assert staged is not None
    assert (staged.number, follows, attachments) == (3, False, ())
    assert where(staged).name.startswith(".checkpoint_000003.tmp-2-")
    assert (tmp_path / "mine" / "model.txt").exists()  # the user's own directory stays
    (tmp_path / "mine" / "model.txt").write_text("something else")
    manifest = verify(where(staged))
    assert (where(staged) / "model.txt").read_text() == "weights"
    facts = {key: manifest.facts[key] for key in ("number", "iteration", "attempt", "metrics")}
    assert facts == {"number": 3, "iteration": 8, "attempt": 2, "metrics": {"loss": 1}}


@pytest.mark.parametrize(
    ("data", "score"),
    [({"loss": 2}, 2.0), ({"loss": "x"}, None), ({"loss": True}, None), ({"other": 1}, None)],
)
def test_the_score_in_a_dict(tmp_path: Path, channel: FakeChannel, data: dict[str, Any], score: float | None) -> None:
    stager = make_stager(session_setup(tmp_path, score_attribute="loss"), channel)
    staged, _, _ = stager.stage(Checkpoint.from_dict(data), 1, {}, never)
    assert staged is not None
    assert staged.score == score


def test_ranks_whose_files_are_not_kept_only_count_along(tmp_path: Path, channel: FakeChannel) -> None:
    stager = make_stager(session_setup(tmp_path, world_rank=1, world_size=2), channel)
    assert stager.stage(Checkpoint.from_dict({}), 1, {}, never) == (None, False, ())
    assert list(tmp_path.iterdir()) == []
    commit_number(tmp_path, 0, tmp_path / "of rank 0")
    stager.committed(Checkpoint.from_dict({}))
    newest = stager.newest_committed()
    assert newest is not None
    assert newest.path == str(tmp_path / "checkpoint_000000")


def commit_number(trial: Path, number: int, scratch: Path) -> None:
    """What rank 0 and the driver do together."""
    stager = make_stager(session_setup(trial, next_number=number))
    staged, _, _ = stager.stage(a_directory(scratch), number + 1, {}, never)
    assert staged is not None
    commit(where(staged), RunDir(trial).checkpoint(number))


def test_a_rank_that_lags_behind_finds_the_newest(tmp_path: Path, channel: FakeChannel) -> None:
    trial = tmp_path / "trial"
    trial.mkdir()
    stager = make_stager(session_setup(trial, world_rank=1, world_size=2), channel)
    stager.stage(Checkpoint.from_dict({}), 1, {}, never)
    stager.committed(Checkpoint.from_dict({}))
    commit_number(trial, 4, tmp_path / "newer")  # number 0 has been deleted in favour of it
    newest = stager.newest_committed()
    assert newest is not None
    assert newest.path == str(trial / "checkpoint_000004")


def test_in_the_background_a_directory_is_taken_over(tmp_path: Path, channel: FakeChannel) -> None:
    trial = tmp_path / "trial"
    trial.mkdir()
    stager = make_stager(session_setup(trial, async_save=True), channel)
    assert stager.stage(a_directory(tmp_path / "mine"), 1, {}, never) == (None, True, ())
    assert not (tmp_path / "mine").exists()
    stager.close()
    (ready,) = channel.sent
    assert isinstance(ready, CheckpointReady)
    assert (ready.index, ready.checkpoint.number) == (1, 0)
    verify(where(ready.checkpoint))
    assert [path.name for path in trial.iterdir()] == [where(ready.checkpoint).name]


def test_in_the_background_a_dict_is_captured_before_it_returns(tmp_path: Path, channel: FakeChannel) -> None:
    stager = make_stager(session_setup(tmp_path, async_save=True), channel)
    state = {"weights": [1, 2, 3]}
    stager.stage(Checkpoint.from_dict(state), 1, {}, never)
    state["weights"].clear()
    stager.close()
    (ready,) = channel.sent
    assert isinstance(ready, CheckpointReady)
    assert Checkpoint.from_directory(where(ready.checkpoint)).to_dict()["weights"] == [1, 2, 3]


def test_background_checkpoints_keep_their_order_and_only_two_are_in_flight(
    tmp_path: Path, channel: FakeChannel
) -> None:
    stager = make_stager(session_setup(tmp_path, async_save=True), channel)
    committed: list[int] = []

    def driver_commits_one() -> None:
        """What report() does while it waits: hear that one more is committed."""
        assert channel.arrived.acquire(timeout=60)
        message = channel.sent[len(committed)]
        assert isinstance(message, CheckpointReady)
        commit(where(message.checkpoint), RunDir(tmp_path).checkpoint(message.checkpoint.number))
        committed.append(message.checkpoint.number)
        stager.acknowledged(len(committed))

    waited_before: list[int] = []
    for index in range(1, 6):
        stager.stage(Checkpoint.from_dict({"n": index}), index, {}, driver_commits_one)
        waited_before.append(len(committed))
    assert waited_before == [0, 0, 1, 2, 3]
    assert committed == [0, 1, 2]
    newest = stager.newest_committed()
    assert newest is not None
    assert newest.to_dict()["n"] == 3
    stager.close()


def test_what_goes_wrong_in_the_background_is_raised_at_the_next_report(
    tmp_path: Path, channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = threading.Event()

    def refuse(body: bytes, attachments: Any = ()) -> None:
        sending.set()
        raise OSError("the line is cut")

    monkeypatch.setattr(channel, "send", refuse)
    stager = make_stager(session_setup(tmp_path, async_save=True), channel)
    stager.stage(Checkpoint.from_dict({}), 1, {}, never)
    assert sending.wait(60)
    with pytest.raises(OSError, match="the line is cut"):
        stager.close()
    with pytest.raises(OSError, match="the line is cut"):
        stager.stage(Checkpoint.from_dict({}), 2, {}, never)


def test_into_memory_nothing_is_written_to_disk(tmp_path: Path, channel: FakeChannel) -> None:
    stager = make_stager(session_setup(tmp_path, target=InMemorySetup(), next_number=5), channel)
    checkpoint = Checkpoint.from_dict({"n": 1})
    staged, follows, attachments = stager.stage(checkpoint, 3, {}, never)
    assert staged is not None
    assert (staged.path, staged.number, follows, len(attachments)) == (b"", 5, False, 1)
    stager.committed(checkpoint)
    newest = stager.newest_committed()
    assert newest is not None
    assert (newest.to_dict()["n"], newest.number, newest.iteration) == (1, 5, 3)
    assert list(tmp_path.iterdir()) == []


def test_memory_holds_a_directory_whole(tmp_path: Path, channel: FakeChannel) -> None:
    stager = make_stager(session_setup(tmp_path, target=InMemorySetup()), channel)
    checkpoint = a_directory(tmp_path / "mine", "x" * 100_000)
    stager.stage(checkpoint, 1, {}, never)
    stager.committed(checkpoint)
    (tmp_path / "mine" / "model.txt").unlink()
    newest = stager.newest_committed()
    assert newest is not None
    with newest.as_directory() as directory:
        assert Path(directory, "model.txt").read_text() == "x" * 100_000
