"""What the user sees in a terminal; and that seeing never kills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from paceline.run.display import printable

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
