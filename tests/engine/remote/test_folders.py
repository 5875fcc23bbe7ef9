"""The directories of workers that do not share the driver's files."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from paceline.engine.remote import folders
from paceline.testing.processes import wait_for


def test_nobody_waits_until_what_killed_agents_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be much: an agent that removes it must give signs of life meanwhile."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{folders._prefix()}left"
    left.mkdir()
    may_remove = threading.Event()

    class SlowDisk:
        @staticmethod
        def rmtree(path: str, ignore_errors: bool) -> None:
            may_remove.wait(10)
            shutil.rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(folders, "shutil", SlowDisk)
    folder = folders.AgentFolder()
    assert left.exists()
    assert Path(folder.new_folder()).is_dir()
    may_remove.set()
    wait_for(lambda: not left.exists(), "the end of what was left")
    folder.close()
    assert list(tmp_path.iterdir()) == []
