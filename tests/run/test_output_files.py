"""Copies of what is printed."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from paceline.run.output_files import copied_output


def test_output_is_shown_and_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    for number in (1, 2):  # a retry appends
        with copied_output(tmp_path, ("out", "err")):
            print("printed", number)
            sys.stderr.writelines(["warned\n"])
            assert sys.stdout.isatty() is False
            assert (tmp_path / "out").read_text().endswith(f"printed {number}\n")  # line by line
            sys.stdout.flush()
    assert (sys.stdout, sys.stderr) == before
    assert (tmp_path / "out").read_text() == "printed 1\nprinted 2\n"
    assert (tmp_path / "err").read_text() == "warned\nwarned\n"
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("printed 1\nprinted 2\n", "warned\nwarned\n")


def test_a_logging_handler_outlives_the_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with copied_output(tmp_path, ("out", "err")):
        handler = logging.StreamHandler()
    for text in ("after", "again"):
        handler.handle(logging.makeLogRecord({"msg": text}))
    assert capsys.readouterr().err == "after\nagain\n"  # and no "Logging error"
    assert (tmp_path / "err").read_text() == ""


def test_nothing_is_copied_unless_asked_for(tmp_path: Path) -> None:
    before = sys.stdout
    with copied_output(tmp_path, None):
        assert sys.stdout is before
    assert list(tmp_path.iterdir()) == []
