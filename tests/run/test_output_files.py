"""Copies of what is printed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from io import TextIOBase
from pathlib import Path

import pytest

from paceline.run.worker import SentText, copied_output, open_text


def opener(folder: Path) -> Callable[[str], TextIOBase]:
    return lambda name: open_text(folder / name)


def test_output_is_shown_and_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    for number in (1, 2):  # a retry appends
        with copied_output(opener(tmp_path), ("out", "err")):
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
    with copied_output(opener(tmp_path), ("out", "err")):
        handler = logging.StreamHandler()
    for text in ("after", "again"):
        handler.handle(logging.makeLogRecord({"msg": text}))
    assert capsys.readouterr().err == "after\nagain\n"  # and no "Logging error"
    assert (tmp_path / "err").read_text() == ""


def test_nothing_is_copied_unless_asked_for(tmp_path: Path) -> None:
    before = sys.stdout
    with copied_output(opener(tmp_path), None):
        assert sys.stdout is before
    assert list(tmp_path.iterdir()) == []


def test_output_for_another_machine_is_sent_in_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[tuple[str, str]] = []
    with copied_output(lambda name: SentText(lambda text: sent.append((name, text))), ("out", "out")):
        print("one", "two")
        print("begun ", end="")
        print("ended\nnext\nand", end="")
        print(" last", end="")
        assert sent == [("out", "one two\n"), ("out", "begun ended\nnext\n")]
    assert sent[2:] == [("out", "and last")]
    SentText(lambda text: sent.append(("err", text))).write("\udc80\n")
    assert sent[3:] == [("err", "?\n")], "messages are UTF-8"
