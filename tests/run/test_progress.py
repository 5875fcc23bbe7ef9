"""What the user sees without a terminal: plain lines."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from paceline.air.result import Result
from paceline.run.display import Display, GuardedWriter, PlainDisplay
from paceline.run.observers import Progress, make_progress
from paceline.run.progress import ShownProgress
from paceline.run.spec import Trial

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
    progress.attempt_failed("rank 1 was killed by SIGKILL", retry=True, charged=True)
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


def shown_frame(width: int, height: int, row: dict[str, Any], name: str = "TorchTrainer") -> list[str]:
    progress = ShownProgress(Display())
    progress.started(Trial("4913f_00000", name, "/results/run", "e1"), "/results/run", 2)
    progress.checkpoint(12, "/results/run/checkpoint_000012")
    progress.row(row)
    lines = [line for line, _ in progress.frame(width, height)]
    assert 1 <= len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    return lines


class TestFrame:
    """The picture of a run in a terminal."""

    @pytest.mark.parametrize("width", [1, 10, 40, 80, 132])
    @pytest.mark.parametrize("height", [1, 2, 3, 12, 50])
    def test_fits(self, width: int, height: int) -> None:
        row = {f"metric {number}": number for number in range(20)}
        shown_frame(width, height, make_row(3, **row, **{"漢字の名前" * 20: "漢" * 30}), "VeryLongTrainer" * 9)

    def test_facts_that_do_not_fit_stand_on_the_next_line(self) -> None:
        first, second, metric = shown_frame(80, 23, make_row(12345, loss=1.0), "AVeryLongNameOfATrainerClass")
        assert first == "AVeryLongNameOfATrainerClass_4913f_00000 · 2 workers · iteration 12345"
        assert re.fullmatch(r"checkpoint_000012 · \d\.\d s", second)
        assert metric.split() == ["loss", "1"]

    def test_metrics_that_do_not_fit_are_counted(self) -> None:
        row = make_row(1, **{f"metric_{number}": number for number in range(20)})
        lines = shown_frame(80, 23, row)
        assert [line.split()[0] for line in lines[1:-1]] == [f"metric_{number}" for number in range(11)]
        assert lines[-1] == "  … and 9 more metrics"
        lines = shown_frame(80, 4, row)
        assert lines[-1] == "  … and 18 more metrics"
        assert shown_frame(80, 1, row)[0].startswith("TorchTrainer")
        assert shown_frame(80, 23, make_row(1, **{f"m{number}": 1 for number in range(12)}))[-1].split() == ["m11", "1"]

    def test_a_long_name_leaves_room_for_the_value(self) -> None:
        line = shown_frame(60, 23, make_row(1, **{"validation/" * 10 + "loss": 0.25}))[-1]
        assert line.endswith("  0.25")
        assert "…" in line
        assert "loss" in line, "the end tells names of one group apart"


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
        assert lines[0] == "TorchTrainer_4913f_00000: starting 2 workers, files in /results/run"
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

    def test_metrics_that_are_left_out_are_counted(self) -> None:
        stream = io.StringIO()
        progress = make_progress(3, stream)
        progress.started(TRIAL, "/results/run", 1)
        row = make_row(1, **{f"m{number}": number for number in range(9)})
        progress.row(row)
        assert ", m5 5, … and 3 more metrics, " in stream.getvalue()
        progress.finished(Result(metrics={**row, **{f"n{number}": 1 for number in range(100)}}))
        assert "\n  … and 59 more metrics\n" in stream.getvalue()

    def test_a_run_that_had_finished(self) -> None:
        stream = io.StringIO()
        progress = make_progress(3, stream)
        progress.reopened(TRIAL, "/results/run")
        progress.finished(Result(metrics=make_row(1, loss=0.5, time_total_s=62.0)))
        progress.close()
        assert stream.getvalue().splitlines() == [
            "TorchTrainer_4913f_00000 had finished already: 1 iteration, 1 min 02 s",
            "  loss   0.5",
            "  files  /results/run",
        ]

    def test_one_iteration(self) -> None:
        stream = io.StringIO()
        make_progress(1, stream).finished(Result(metrics=make_row(1)))
        assert " after 1 iteration, " in stream.getvalue()

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
        progress = ShownProgress(PlainDisplay(GuardedWriter(stream), detailed=True))
        progress.output(0, "no end")
        progress.warning("w")
        progress.output(1, "no end either")
        progress.close()
        assert stream.getvalue() == "(rank 0) no end\nWarning: w\n(rank 1) no end either\n"

    def test_goes_quiet_when_the_stream_is_closed(self) -> None:
        stream = io.StringIO()
        writer = GuardedWriter(stream)
        stream.close()
        whole_run(ShownProgress(PlainDisplay(writer, detailed=True)))
        assert writer.quiet

    def test_rich_is_not_imported(self) -> None:
        code = (
            "import sys; from paceline.run.observers import make_progress; p = make_progress(3); p.warning('w'); "
            "p.close(); print([m for m in ('rich', 'numpy', 'pandas') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("\n[]\n")
