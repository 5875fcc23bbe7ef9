"""What the user sees without a terminal: plain lines."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.air.result import Result
from paceline.run.display import GuardedWriter, PlainDisplay
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
