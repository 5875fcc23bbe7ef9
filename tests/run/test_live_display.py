"""What the user sees in a terminal; and that seeing never kills."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from paceline.run.display import GuardedWriter, printable
from paceline.run.live_display import LiveDisplay

SCRIPT = Path(__file__).with_name("progress_script.py")


def environment(**changes: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "PYTHONUNBUFFERED")}
    root = str(Path(__file__).parents[2])
    size = {"COLUMNS": "100", "LINES": "30"}  # the terminal's own size is set a moment after the program starts
    return {**inherited, **size, "PYTHONPATH": root, "TERM": "xterm-256color", **changes}


def run_in_terminal(folder: Path, **changes: str) -> str:
    command = [str(SCRIPT), str(folder / "done")]
    child = pexpect.spawn(sys.executable, command, env=environment(**changes), dimensions=(30, 100), timeout=60)
    text: str = child.read().decode()
    child.close()
    assert child.exitstatus == 0, text
    assert (folder / "done").read_text() == "done"
    return text


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a terminal gets of the script, with all control sequences."""
    return run_in_terminal(tmp_path_factory.mktemp("terminal"))


class TestLive:
    def test_view_in_a_terminal(self, shown: str) -> None:
        shown = printable(shown)
        assert "TorchTrainer_4913f_00000: starting 2 workers, files in /results/run" in shown
        assert "TorchTrainer_4913f_00000 · 2 workers · attempt 2 · iteration 200 · checkpoint_000007" in shown
        assert "(rank 0) worker line 2\n" in shown
        assert "(rank 1) worker line 199\n" in shown
        assert "attempt 1 failed: rank 1 was killed by SIGKILL" in shown
        assert "a user's own print" in shown
        assert "look [bold]out[/bold] :smile:" in shown, "texts are shown as they are"
        end = shown[shown.index("finished after 200 iterations") :]
        assert "accuracy" in end
        assert "0.75" in end
        assert end.split()[-2:] == ["files", "/results/run"]

    def test_workers_cannot_control_the_terminal(self, shown: str) -> None:
        assert "retitled" not in shown
        assert "\x1b[2J" not in shown
        assert "\x1b[31mvalue" not in shown
        assert "\x1b[?25l" not in shown, "the cursor is never hidden: a killed driver could not bring it back"

    def test_an_endless_line_is_cut(self, shown: str) -> None:
        assert shown.count("the log file has the whole line") == 1
        assert "after the long line" in shown
        assert "xEND" not in shown

    def test_a_terminal_that_can_do_nothing_gets_plain_lines(self, tmp_path: Path) -> None:
        shown = run_in_terminal(tmp_path, TERM="dumb")
        assert "(rank 0) worker line 2" in shown
        assert "finished after 200 iterations" in shown
        assert " · " not in shown


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Counter:
    """A picture of one wide line."""

    def line(self) -> str:
        return "line"

    def frame(self, width: int, height: int) -> list[tuple[str, str]]:
        return [("picture " + "x" * (width - 8), "bold")]

    def html(self) -> Any:
        raise NotImplementedError


class TestScreen:
    @pytest.fixture(autouse=True)
    def size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        monkeypatch.setenv("LINES", "10")
        monkeypatch.delenv("NO_COLOR", raising=False)

    @pytest.fixture
    def shown(self) -> Iterator[tuple[LiveDisplay, FakeTerminal]]:
        terminal = FakeTerminal()
        display = LiveDisplay(GuardedWriter(terminal))
        display.start(Counter())
        yield display, terminal
        display.close()

    def test_a_terminal_that_became_narrower_has_wrapped_the_lines(
        self, shown: tuple[LiveDisplay, FakeTerminal], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        display, terminal = shown
        monkeypatch.setenv("COLUMNS", "20")
        display.say("hello")
        assert terminal.getvalue().count("\x1b[2A\x1b[Jhello\n") == 1

    def test_colours_can_be_turned_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        terminal = FakeTerminal()
        display = LiveDisplay(GuardedWriter(terminal))
        display.say("warning", "yellow")
        display.say("heading", "bold red")
        assert terminal.getvalue() == "warning\n\x1b[1mheading\x1b[0m\n"

    def test_what_the_user_prints_stays_above_the_picture(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        terminal, errors = FakeTerminal(), io.StringIO()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", errors)
        display = LiveDisplay(GuardedWriter(terminal))
        display.start(Counter())
        print("half a ", end="", flush=True)
        assert "half" not in terminal.getvalue(), "a line appears when it is complete"
        print("line, \x1b[31mred\x1b[0m and \x1b[2Jharmless")
        print("10%\r100%")
        print("an error", file=sys.stderr)
        print("no end", end="")
        assert "\x1b[Jhalf a line, \x1b[31mred\x1b[0m and harmless\x1b[0m\n\x1b[1mpicture" in terminal.getvalue()
        assert "\x1b[J100%\n" in terminal.getvalue()
        assert errors.getvalue() == "an error\n", "a stream that goes elsewhere stays there"
        display.close()
        assert sys.stdout is terminal
        assert terminal.getvalue().endswith("\x1b[Jno end")

    def test_a_stream_that_the_user_has_set_meanwhile_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal, other = FakeTerminal(), io.StringIO()
        monkeypatch.setattr(sys, "stdout", terminal)
        display = LiveDisplay(GuardedWriter(terminal))
        display.start(Counter())
        sys.stdout = other
        display.close()
        assert sys.stdout is other


def test_a_closed_pipe_changes_neither_the_run_nor_its_exit_code(tmp_path: Path) -> None:
    """The reader takes one line and leaves; the writer continues to its end."""
    done_file = tmp_path / "done"
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(done_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert b"starting" in process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(b"go on\n")
    assert (process.returncode, errors) == (0, b"")
    assert done_file.read_text() == "done"
