"""Sending runs that a tracker did not get, or did not get all of."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.air.errors import ConfigError, RestoreError, RunLockedError
from paceline.storage.lock import RunLock
from paceline.storage.run_dir import RunDir
from paceline.trackers import TrackerCallback, send
from tests.trackers.climbs import ROWS, trainer
from tests.trackers.ledger import LedgerTracker
from tests.trackers.readers import read_ledger


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer([], tmp_path_factory.mktemp("results")).fit().path


def test_a_run_that_was_never_tracked_is_sent_from_its_beginning(untracked: str, tmp_path: Path) -> None:
    for tracker in (LedgerTracker(tmp_path / "one"), TrackerCallback(LedgerTracker(tmp_path / "two"))):
        Path(untracked, "trackers", "ledger.json").unlink(missing_ok=True)
        assert send(untracked, tracker) == ROWS
    for name in ("one", "two"):
        (found,) = read_ledger(tmp_path / name)
        assert [row.step for row in found.rows] == [*range(1, ROWS + 1)]
        assert found.outcome == "finished"


def test_what_the_tracker_raises_is_raised(untracked: str, tmp_path: Path) -> None:
    (tmp_path / "down").touch()
    Path(untracked, "trackers", "ledger.json").unlink(missing_ok=True)
    with pytest.raises(ConnectionError):
        send(untracked, LedgerTracker(tmp_path))
    (tmp_path / "down").unlink()
    assert send(untracked, LedgerTracker(tmp_path)) == ROWS


def test_a_live_run_is_left_to_its_driver(untracked: str, tmp_path: Path) -> None:
    with RunLock(RunDir(Path(untracked)).lock), pytest.raises(RunLockedError, match="its driver sends its rows"):
        send(untracked, LedgerTracker(tmp_path))


def test_bad_arguments_are_named(untracked: str, tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="holds no run"):
        send(tmp_path, LedgerTracker(tmp_path))
    with pytest.raises(ConfigError, match="is a URI"):
        send("s3://bucket/run", LedgerTracker(tmp_path))
    with pytest.raises(ConfigError, match="'nobody' is not a tracker"):
        send(untracked, "nobody")
    with pytest.raises(ConfigError, match=r"'\.\./ledger' is not a file of this tracker"):
        send(untracked, LedgerTracker(tmp_path), file="../ledger")
