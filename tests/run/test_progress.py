"""What the user sees: plain lines, a live view in a terminal, worker output; and that seeing never kills."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from paceline.air.result import Result
from paceline.run.follow import CHUNK_BYTES, LogFollower
from paceline.run.progress import PlainProgress, Progress, duration_text, make_progress, value_text
from paceline.run.terminal import GuardedWriter, RankPrefixer, last_overwrite, printable
from paceline.run.trial import Trial

TRIAL = Trial("4913f_00000", "TorchTrainer", "/results/run", "e1")


def make_row(iteration: int, **metrics: Any) -> dict[str, Any]:
    return {**metrics, "training_iteration": iteration, "pid": 1, "config": {"lr": 1}}


def whole_run(progress: Progress, rows: int = 3, error: Exception | None = None) -> None:
    progress.started(TRIAL, "/results/run", 2)
    for iteration in range(1, rows + 1):
        progress.row(make_row(iteration, loss=1 / iteration, eval={"acc": 0.5}))
        progress.output(0, f"line {iteration}\n")
    progress.checkpoint(3, "/results/run/checkpoint_000003")
    progress.tick()
    progress.attempt_failed("rank 1 was killed by SIGKILL", retry=True)
    progress.row(make_row(rows + 1, loss=0.25))
    progress.warning("look out")
    progress.finished(
        Result(
            metrics=make_row(rows + 1, loss=0.25, eval={"acc": 0.75}),
            error=error,
            status="failed" if error else "finished",
        )
    )
    progress.close()


class TestPlain:
    def shown(self, verbose: int, **kwargs: Any) -> str:
        stream = io.StringIO()
        whole_run(make_progress(verbose, stream), **kwargs)
        return stream.getvalue()

    def test_silent(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert self.shown(0) == ""
        assert capfd.readouterr() == ("", "")

    def test_beginning_end_and_trouble(self) -> None:
        lines = self.shown(1).splitlines()
        assert lines[0] == "TorchTrainer_4913f_00000 started: 2 workers, files in /results/run"
        assert "attempt 1 failed: rank 1 was killed by SIGKILL" in lines[1]
        assert lines[3] == "Warning: look out"
        assert lines[4].startswith("TorchTrainer_4913f_00000 finished after 4 iterations, ")
        assert [line.split() for line in lines[5:]] == [
            ["loss", "0.25"],
            ["eval/acc", "0.75"],
            ["files", "/results/run"],
        ]

    def test_rows_are_few_but_a_new_attempt_shows_its_first(self) -> None:
        rows = [line for line in self.shown(3, rows=1000).splitlines() if "iteration " in line]
        assert len(rows) == 2
        assert rows[0].startswith("TorchTrainer_4913f_00000: iteration 1, loss 1, eval/acc 0.5, ")
        assert "iteration 1001, loss 0.25, checkpoint_000003" in rows[1]

    def test_worker_output_has_its_rank(self) -> None:
        assert "\n(rank 0) line 2\n" in self.shown(2)
        assert "line 2" not in self.shown(1)

    def test_a_failed_run_says_so(self) -> None:
        assert " failed after 4 iterations" in self.shown(1, error=ValueError("x"))

    def test_a_run_without_metrics_ends(self) -> None:
        stream = io.StringIO()
        make_progress(3, stream).finished(Result(log_dir=Path("/results/run")))
        assert "after 0 iterations" in stream.getvalue()

    def test_own_lines_do_not_continue_a_workers_line(self) -> None:
        stream = io.StringIO()
        progress = PlainProgress(GuardedWriter(stream), detailed=True)
        progress.output(0, "no end")
        progress.warning("w")
        progress.output(1, "no end either")
        progress.close()
        assert stream.getvalue() == "(rank 0) no end\nWarning: w\n(rank 1) no end either\n"

    def test_rich_is_not_imported(self) -> None:
        code = (
            "import sys; from paceline.run.progress import make_progress; p = make_progress(3); p.row({'a': 1}); "
            "p.close(); print([m for m in ('rich', 'numpy', 'pandas') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("\n[]\n")


class TestRanksOutput:
    def test_each_line_gets_one_prefix(self) -> None:
        assert RankPrefixer().lines(3, "a\n\nb\n") == "(rank 3) a\n(rank 3) \n(rank 3) b\n"

    def test_a_line_in_pieces_gets_one_prefix(self) -> None:
        prefixer = RankPrefixer()
        pieces = [prefixer.lines(0, "abc"), prefixer.lines(0, "def"), prefixer.lines(0, "g\nh\n")]
        assert "".join(pieces) == "(rank 0) abcdefg\n(rank 0) h\n"

    def test_another_rank_starts_its_own_line(self) -> None:
        prefixer = RankPrefixer()
        text = prefixer.lines(0, "abc") + prefixer.lines(1, "x\n") + prefixer.lines(0, "def\n")
        assert text == "(rank 0) abc\n(rank 1) x\n(rank 0) def\n"

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("10%\r20%\r30%\n", "30%\n"),
            ("windows\r\nline\r\n", "windows\nline\n"),
            ("a\nb\rc\r\n", "a\nc\n"),
            ("plain\n", "plain\n"),
        ],
    )
    def test_progress_bars_show_their_last_state(self, text: str, shown: str) -> None:
        assert last_overwrite(text) == shown

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b[2J\x1b[1;1Hhome", "home"),
            ("\x1b]0;title\x07text", "text"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1bPdevice\x1b\\text", "text"),
            ("\x1bcreset", "reset"),
            ("bell\x07 nul\x00 del\x7f csi\x9b", "bell nul del csi"),
            ("tab\tand\nline", "tab\tand\nline"),
            ("torn\x1b", "torn"),
            ("torn\x1b]0;title", "torn"),
            ("ü 漢", "ü 漢"),
        ],
    )
    def test_printable(self, text: str, shown: str) -> None:
        assert printable(text) == shown


class TestGuardedWriter:
    def test_goes_quiet_when_the_stream_is_closed(self) -> None:
        stream = io.StringIO()
        writer = GuardedWriter(stream)
        stream.close()
        whole_run(PlainProgress(writer, detailed=True))
        assert writer.quiet

    def test_goes_quiet_when_the_reader_is_gone(self) -> None:
        reader, writing_end = os.pipe()
        os.close(reader)
        stream = os.fdopen(writing_end, "w")
        writer = GuardedWriter(stream)
        writer.write("lost\n")
        assert writer.quiet
        writer.write("not tried\n")
        with pytest.raises(BrokenPipeError):  # the text object still holds what it could not write
            stream.close()

    def test_a_reader_that_is_slow_is_not_given_up(self) -> None:
        class Busy(io.StringIO):
            busy = True

            def write(self, text: str) -> int:
                if self.busy:
                    raise BlockingIOError
                return super().write(text)

        stream = Busy()
        writer = GuardedWriter(stream)
        writer.write("dropped\n")
        stream.busy = False
        writer.write("shown\n")
        assert stream.getvalue() == "shown\n"

    def test_characters_that_the_stream_cannot_say_are_replaced(self) -> None:
        raw = io.BytesIO()
        writer = GuardedWriter(io.TextIOWrapper(raw, encoding="ascii"))
        writer.write("über \ud800 …\n")
        assert raw.getvalue() == b"?ber ? ?\n"
        assert not writer.quiet

    def test_no_stream_at_all(self) -> None:
        writer = GuardedWriter(None)
        assert writer.write("x") == 1
        assert not writer.isatty()

    def test_a_closed_pipe_changes_neither_the_run_nor_its_exit_code(self, tmp_path: Path) -> None:
        """C10: the reader takes one line and leaves; the writer goes on to its end."""
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        done_file = tmp_path / "done"
        process = subprocess.Popen(
            [sys.executable, str(script), str(done_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        assert b"started" in process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate(b"go on\n")
        assert (process.returncode, errors) == (0, b"")
        assert done_file.read_text() == "done"


SCRIPT = """
import sys
from pathlib import Path
from paceline.air.result import Result
from paceline.run.progress import make_progress
from paceline.run.trial import Trial

progress = make_progress(3)
progress.started(Trial("4913f_00000", "TorchTrainer", "/results/run", "e1"), "/results/run", 2)
if not sys.stdout.isatty():
    sys.stdin.readline()
for i in range(1, 200):
    progress.row({"loss": 1 / i, "training_iteration": i, "te\\x1b[2Jxt": "\\x1b[31mvalue"})
    progress.output(i % 2, f"worker line {i}\\n\\x1b]0;retitled\\x07\\x1b[2Jclear\\n")
progress.output(1, "x" * 5000)
progress.output(1, "x" * 5000)
progress.output(1, "xEND\\nafter the long line\\n")
if sys.stdout.isatty():
    print("a user's own print")
progress.checkpoint(7, "/results/run/checkpoint_000007")
progress.attempt_failed("rank 1 was killed by SIGKILL", retry=True)
progress._next_draw_at = 0
progress.row({"loss": 0.125, "training_iteration": 200})
progress.tick()
progress.warning("look [bold]out[/bold] :smile:")
progress.finished(Result(metrics={"loss": 0.125, "accuracy": 0.75, "training_iteration": 200}))
progress.close()
Path(sys.argv[1]).write_text("done")
"""


def environment(**changes: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "PYTHONUNBUFFERED")}
    root = str(Path(__file__).parents[2])
    return {**inherited, "PYTHONPATH": root, "TERM": "xterm-256color", **changes}


class TestLive:
    def run_in_terminal(self, tmp_path: Path, **changes: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        command = [str(script), str(tmp_path / "done")]
        child = pexpect.spawn(sys.executable, command, env=environment(**changes), dimensions=(30, 100), timeout=60)
        shown: str = child.read().decode()
        child.close()
        assert child.exitstatus == 0, shown
        assert (tmp_path / "done").read_text() == "done"
        return shown

    def test_view_in_a_terminal(self, tmp_path: Path) -> None:
        shown = printable(self.run_in_terminal(tmp_path))
        assert "TorchTrainer_4913f_00000 started: 2 workers, files in /results/run" in shown
        assert "TorchTrainer_4913f_00000 · 2 workers · attempt 2 · iteration 200 · checkpoint_000007" in shown
        assert "(rank 0) worker line 2\n" in shown
        assert "(rank 1) worker line 199\n" in shown
        assert "Attempt 1 failed: rank 1 was killed by SIGKILL" in shown
        assert "a user's own print" in shown
        assert "look [bold]out[/bold] :smile:" in shown, "texts are shown as they are"
        end = shown[shown.index("finished after 200 iterations") :]
        assert "accuracy" in end
        assert "0.75" in end
        assert "files: /results/run" in end

    def test_workers_cannot_control_the_terminal(self, tmp_path: Path) -> None:
        shown = self.run_in_terminal(tmp_path)
        assert "retitled" not in shown
        assert "\x1b[2J" not in shown
        assert "\x1b[31mvalue" not in shown
        assert "\x1b[?25l" not in shown, "the cursor is never hidden: a killed driver could not bring it back"

    def test_an_endless_line_is_cut(self, tmp_path: Path) -> None:
        shown = self.run_in_terminal(tmp_path)
        assert shown.count("the log file has the whole line") == 1
        assert "after the long line" in shown
        assert "xEND" not in shown

    def test_a_terminal_that_can_do_nothing_gets_plain_lines(self, tmp_path: Path) -> None:
        shown = self.run_in_terminal(tmp_path, TERM="dumb")
        assert "(rank 0) worker line 2" in shown
        assert "finished after 200 iterations" in shown
        assert " · " not in shown


class TestFollower:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "rank_0.log"

    def add(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    def test_lines_come_when_they_are_complete(self, log: Path) -> None:
        follower = LogFollower({0: log})
        assert list(follower.read()) == [], "the file appears later"
        self.add(log, b"one\ntw")
        assert list(follower.read()) == [(0, "one\n")]
        assert list(follower.read()) == []
        self.add(log, b"o\nthree\nfo")
        assert list(follower.read()) == [(0, "two\nthree\n")]
        assert list(follower.drain()) == [(0, "fo")]
        assert list(follower.drain()) == []
        follower.close()

    def test_every_rank_is_followed(self, tmp_path: Path) -> None:
        paths = {rank: tmp_path / f"rank_{rank}.log" for rank in range(3)}
        for rank in (0, 2):
            self.add(paths[rank], f"from {rank}\n".encode())
        follower = LogFollower(paths)
        assert list(follower.read()) == [(0, "from 0\n"), (2, "from 2\n")]
        follower.close()

    def test_a_retry_starts_at_the_end(self, log: Path) -> None:
        self.add(log, b"first attempt\n")
        follower = LogFollower({0: log}, from_end=True)
        self.add(log, b"second attempt\n")
        assert list(follower.drain()) == [(0, "second attempt\n")]
        follower.close()

    def test_one_reading_is_bounded_and_draining_gets_the_rest(self, log: Path) -> None:
        content = b"".join(b"line %d\n" % n for n in range(50_000))
        self.add(log, content)
        follower = LogFollower({0: log})
        ((_, first),) = follower.read()
        assert len(first) <= CHUNK_BYTES
        rest = [text for _, text in follower.drain()]
        assert all(text.endswith("\n") and len(text) <= 2 * CHUNK_BYTES for text in rest)
        assert (first + "".join(rest)).encode() == content
        follower.close()

    def test_an_endless_line_comes_in_pieces(self, log: Path) -> None:
        line = "ü" * (5 * CHUNK_BYTES) + "\n"
        self.add(log, b"x" + line.encode() + b"next\n")
        follower = LogFollower({0: log})
        pieces = [text for _, text in follower.drain()]
        assert max(map(len, pieces)) <= 2 * CHUNK_BYTES
        assert "".join(pieces) == "x" + line + "next\n", "no character is cut in two"
        follower.close()

    def test_a_slow_endless_line_does_not_pile_up(self, log: Path) -> None:
        follower = LogFollower({0: log})
        pieces = []
        for _ in range(8):
            self.add(log, b"y" * (CHUNK_BYTES // 2))
            pieces += [text for _, text in follower.read()]
        assert [len(piece) for piece in pieces] == [CHUNK_BYTES] * 4
        follower.close()

    def test_binary_output_is_shown_as_replacement_characters(self, log: Path) -> None:
        self.add(log, b"\xff\xfe\x00ok\n\xc3")
        follower = LogFollower({0: log})
        assert list(follower.drain()) == [(0, "��\x00ok\n"), (0, "�")]
        follower.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456789, "0.12346"),
        (1e-9, "1e-09"),
        (3, "3"),
        (float("nan"), "nan"),
        ("a\nb", "a b"),
        ("x" * 50, "x" * 39 + "…"),
    ],
)
def test_value_text(value: object, text: str) -> None:
    assert value_text(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.06, "0.1 s"), (61, "1 min 01 s"), (3 * 3600 + 125, "3 h 02 min")])
def test_duration_text(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
