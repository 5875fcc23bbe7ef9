"""The driver's half for ranks elsewhere: what arrives is checked, and what is asked for stays inside a checkpoint."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig
from paceline.air.attachment import Attachment
from paceline.air.errors import CheckpointCorruptError, CheckpointError
from paceline.run import checkpoint_target
from paceline.run.checkpoint_background import STORE
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.checkpoint_target import Relayed
from paceline.run.messages import (
    CheckpointFiles,
    CheckpointPiece,
    CheckpointWanted,
    RelayedSetup,
    SessionSetup,
    StagedCheckpoint,
    decode_from_worker,
)
from paceline.run.rank_target import RankTarget, fetch, fetch_start, rank_target
from paceline.storage.commit import to_trash
from paceline.storage.journal import Journal
from paceline.storage.run_dir import RunDir
from tests.descriptors import open_descriptors
from tests.run.fake_channel import session_setup


class Line:
    """Carries messages between a rank and the driver's target, and may spoil them."""

    rank = 0
    world_size = 1

    def __init__(self, target: Relayed) -> None:
        self.target = target
        self.pieces = 0
        self.answers: list[tuple[Any, tuple[Attachment, ...]]] = []
        self.spoil: Any = lambda piece, content: (piece, content)

    def send(self, body: bytes, attachments: Any = ()) -> None:
        message = decode_from_worker(body)
        content = b"".join(bytes(attachment.view()) for attachment in attachments)
        if isinstance(message, CheckpointPiece):
            self.pieces += 1
            message, content = self.spoil(message, content)
        assert isinstance(message, CheckpointPiece | CheckpointWanted)
        self.target.received(0, message, (Attachment(content),), self._reply)

    def _reply(self, rank: int, message: Any, attachments: tuple[Attachment, ...]) -> None:
        self.answers.append((message, attachments))

    def ask(self, wanted: CheckpointWanted) -> tuple[CheckpointFiles, tuple[Attachment, ...]]:
        self.target.received(0, wanted, (), self._reply)
        answer, attachments = self.answers.pop()
        return answer, attachments

    def receive(self, timeout: float | None = None) -> bytes | None:
        return None

    def take_attachments(self) -> tuple[Attachment, ...]:
        return ()


def setup(run_dir: RunDir) -> SessionSetup:
    return session_setup(run_dir.root, target=RelayedSetup())


def deliver(line: Line, run_dir: RunDir, source: Path) -> StagedCheckpoint:
    target = rank_target(setup(run_dir), line, line.ask)
    staged, attachments = target.capture(Checkpoint.from_directory(source), 0, {}).deliver(0, {"score": None})
    assert attachments == ()
    target.close()
    return staged


def left_in(run_dir: RunDir) -> list[str]:
    """Checkpoints, and what was to become one."""
    return [path.name for path in run_dir.root.iterdir() if "checkpoint" in path.name]


def a_tree(place: Path) -> Path:
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "large").write_bytes(os.urandom(10 << 20))
    (place / "empty").touch()
    (place / "script").write_text("#!")
    (place / "script").chmod(0o750)
    (place / "nothing here").mkdir()
    return place


def test_files_arrive_in_pieces_and_can_be_fetched_again(run_dir: RunDir, tmp_path: Path) -> None:
    target = Relayed(run_dir)
    line, source = Line(target), a_tree(tmp_path / "source")
    staged = deliver(line, run_dir, source)
    assert line.pieces == 7  # 3 of the large file, one of each other file (the metadata, too), one of the directory
    target.commit(0, 0, {0: staged}, {"train": {"row": 3}})
    fetched = tmp_path / "fetched"
    fetch(line.ask, line.ask(CheckpointWanted(0))[0], fetched)
    for place in (run_dir.checkpoint(0), fetched):
        Checkpoint.from_directory(place).verify()
        assert (place / "deep" / "large").read_bytes() == (source / "deep" / "large").read_bytes()
        assert (place / "script").stat().st_mode & 0o777 == 0o750
        assert (place / "nothing here").is_dir()
    assert Checkpoint.from_directory(fetched).data_positions == {"train": {"row": 3}}
    target.close()


def test_what_is_spoiled_on_the_way_is_refused(run_dir: RunDir, tmp_path: Path) -> None:
    target = Relayed(run_dir)
    line = Line(target)
    line.spoil = lambda piece, content: (piece, b"#?" if content == b"#!" else content)
    staged = deliver(line, run_dir, a_tree(tmp_path / "source"))
    with pytest.raises(CheckpointCorruptError, match=r"rank 0 did not arrive as it was sent: 'script'"):
        target.commit(0, 0, {0: staged}, None)
    assert left_in(run_dir) == []
    target.close()


@pytest.mark.parametrize("name", [b"../outside", b"/etc/outside", b"MANIFEST.json"])
def test_a_name_that_leads_elsewhere_is_refused(run_dir: RunDir, tmp_path: Path, name: bytes) -> None:
    target = Relayed(run_dir)
    line = Line(target)
    line.spoil = lambda piece, content: (CheckpointPiece(piece.staging, name, piece.mode, piece.is_last), content)
    staged = deliver(line, run_dir, a_tree(tmp_path / "source"))
    with pytest.raises(CheckpointError, match=r"cannot be a file of a checkpoint|is reserved"):
        target.commit(0, 0, {0: staged}, None)
    assert not (run_dir.root / "outside").exists()
    target.close()


def test_nothing_outside_a_checkpoint_is_sent(run_dir: RunDir, tmp_path: Path) -> None:
    target = Relayed(run_dir)
    line = Line(target)
    target.commit(0, 0, {0: deliver(line, run_dir, a_tree(tmp_path / "source"))}, None)
    for name in (b"../journal.jsonl", os.fsencode(tmp_path / "source" / "script")):
        assert line.ask(CheckpointWanted(0, name, 0, 100)) == (CheckpointFiles(0), ())
    assert line.ask(CheckpointWanted(None)) == (CheckpointFiles(None), ())  # there is no start
    target.close()


def test_a_checkpoint_that_goes_while_it_is_listed_is_not_there(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletions happen in another thread. The question of a rank must not end the run."""
    target = Relayed(run_dir)
    line = Line(target)
    target.commit(0, 0, {0: deliver(line, run_dir, a_tree(tmp_path / "source"))}, None)
    list_files = checkpoint_target.tree

    def delete_first(path: Path) -> Iterator[tuple[str, Path]]:
        to_trash(path)
        return list_files(path)

    monkeypatch.setattr(checkpoint_target, "tree", delete_first)
    answer, _ = line.ask(CheckpointWanted(0))
    assert answer.number is None
    target.close()


def test_a_checkpoint_that_goes_while_it_is_fetched_is_not_completed_from_a_newer_one(
    run_dir: RunDir, tmp_path: Path
) -> None:
    target = Relayed(run_dir)
    line = Line(target)
    for number in range(2):
        target.commit(number, 0, {0: deliver(line, run_dir, a_tree(tmp_path / f"source-{number}"))}, None)

    def delete_after_the_first_piece(wanted: CheckpointWanted) -> tuple[CheckpointFiles, tuple[Attachment, ...]]:
        if wanted.offset and run_dir.checkpoint(0).exists():
            to_trash(run_dir.checkpoint(0))
        return line.ask(wanted)

    with pytest.raises(CheckpointError, match="was deleted"):
        fetch(delete_after_the_first_piece, line.ask(CheckpointWanted(0))[0], tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    target.close()


class Keeping(Line):
    """Answers which checkpoints are kept, as the keeper does."""

    kept: Sequence[int] = ()

    def ask(self, wanted: CheckpointWanted) -> tuple[CheckpointFiles, tuple[Attachment, ...]]:
        if wanted.all_kept:
            return CheckpointFiles(None, kept=[(number, {"number": number}) for number in self.kept]), ()
        return super().ask(wanted)


@pytest.fixture
def three_kept(run_dir: RunDir) -> Iterator[tuple[Keeping, RankTarget]]:
    """Three committed checkpoints, and a rank that can ask for them."""
    target = Relayed(run_dir)
    line = Keeping(target)
    rank = rank_target(setup(run_dir), line, line.ask)
    for number in range(3):
        capture = rank.capture(Checkpoint.from_dict({"number": number}), number, {})
        staged, _ = capture.deliver(number, {"score": None})
        target.commit(number, 0, {0: staged}, None)
    line.kept = range(3)
    yield line, rank
    target.close()
    rank.close()


def contents(kept: list[tuple[Checkpoint, dict[str, Any]]]) -> list[tuple[int, int]]:
    return [(checkpoint.to_dict()["number"], row["number"]) for checkpoint, row in kept]


def folders(checkpoint: Checkpoint | None) -> int:
    """How many checkpoints the rank has fetched and not deleted."""
    assert checkpoint is not None
    return len(list(Path(str(checkpoint.path)).parent.glob("fetched-*")))


def test_what_the_user_was_given_stays_when_another_checkpoint_is_asked_for(
    three_kept: tuple[Keeping, RankTarget],
) -> None:
    line, rank = three_kept
    kept = rank.kept()
    for _ in range(2):
        assert rank.find(2, Checkpoint) is not None
        assert contents(kept) == [(0, 0), (1, 1), (2, 2)]
    line.kept = [1, 2]
    assert contents(rank.kept()) == [(1, 1), (2, 2)]
    assert not Path(str(kept[0][0].path)).exists(), "what is not kept any more goes, as it does on the driver's disk"


def test_the_newest_checkpoint_is_fetched_once(three_kept: tuple[Keeping, RankTarget]) -> None:
    """By a rank that has not reported one itself."""
    _, rank = three_kept
    assert len({folders(rank.find(-1, Checkpoint)) for _ in range(5)}) == 1


def test_what_is_deleted_while_all_kept_ones_are_fetched_is_left_out(
    three_kept: tuple[Keeping, RankTarget], run_dir: RunDir
) -> None:
    """No newer one takes its place beside its row."""
    _, rank = three_kept
    to_trash(run_dir.checkpoint(1))
    assert contents(rank.kept()) == [(0, 0), (2, 2)]


def test_a_start_that_cannot_be_read_is_an_error_of_the_rank(run_dir: RunDir, tmp_path: Path) -> None:
    target = Relayed(run_dir)
    line, source = Line(target), a_tree(tmp_path / "source")
    target.prepare(source)
    (source / "link").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"to continue from cannot be read: .* contains the link 'link'"):
        fetch_start(line.ask, tmp_path / "fetched")
    target.close()


def test_what_was_announced_and_never_sent_is_refused(run_dir: RunDir) -> None:
    target = Relayed(run_dir)
    with pytest.raises(CheckpointError, match="did not send"):
        target.commit(0, 0, {0: StagedCheckpoint(b"nowhere", 0, 1, None, b"{}")}, None)
    target.close()


@pytest.mark.parametrize("manifest", [None, b"not a manifest"])
def test_what_cannot_be_committed_leaves_nothing(run_dir: RunDir, manifest: bytes | None) -> None:
    target = Relayed(run_dir)
    before = open_descriptors()
    piece = CheckpointPiece("staging", b"file", 0o600, is_last=False)
    target.received(0, piece, (Attachment(b"content"),), lambda *_: None)
    with pytest.raises(CheckpointError):
        target.commit(0, 0, {0: StagedCheckpoint(b"staging", 0, 1, None, manifest)}, None)
    target.close()
    assert left_in(run_dir) == []
    assert open_descriptors() <= before


def test_an_attempt_that_is_over_leaves_nothing(run_dir: RunDir, tmp_path: Path) -> None:
    target = Relayed(run_dir)
    deliver(Line(target), run_dir, a_tree(tmp_path / "source"))
    target.abandon(0)
    target.close()
    assert left_in(run_dir) == []


def test_what_the_next_attempt_sends_is_not_abandoned_with_the_last_one(
    run_dir: RunDir, journal: Journal, tmp_path: Path
) -> None:
    keeper = CheckpointKeeper(CheckpointConfig(), run_dir, journal, shares_files=False)
    assert isinstance(keeper.target, Relayed)
    go_on = threading.Event()
    busy = keeper.background.submit(lambda: go_on.wait(60), STORE)
    keeper.settle()
    staged = deliver(Line(keeper.target), run_dir, a_tree(tmp_path / "source"))
    go_on.set()
    busy.result(60)
    keeper.background.submit(lambda: None, STORE).result(60)
    keeper.commit(staged, {}, 1, {}).check()
    keeper.close()
