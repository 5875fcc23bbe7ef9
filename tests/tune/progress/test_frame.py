"""The live table: it fits every terminal, shows what matters most, and leaves the terminal as it was."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.cells import cell_len

from paceline.run.display import printable
from paceline.run.live_display import DRAW_INTERVAL_S
from paceline.run.spec import Trial
from paceline.tune.progress.progress import frame_lines, make_experiment_progress, shown_trials
from paceline.tune.progress.view import ExperimentEnd
from tests.tune.progress.made_up import MadeUpExperiment


def busy_experiment(trials: int = 60, **view: Any) -> MadeUpExperiment:
    """Of 60 trials 16 run, 6 are paused, 6 have failed and 32 have ended; trial 3 is best."""
    experiment = MadeUpExperiment(total=trials, **view)
    for number in range(trials):
        trial = experiment.add(optimizer__lr=number / 7, act="漢字の活性化" if number % 2 else "[bold]tanh[/bold]\n\tx")
        experiment.become(trial, "RUNNING")
        experiment.report(trial, loss=0.001 if number == 3 else 1 + number, accuracy=0.5, nested={"f1": 0.25})
        if number % 10 == 8:
            experiment.fail(trial, "boom")
        elif number % 10 == 9:
            experiment.become(trial, "PAUSED")
        elif number % 3:
            experiment.become(trial, "TERMINATED")
    experiment.add()
    return experiment


def frame(experiment: MadeUpExperiment, width: int, height: int) -> list[str]:
    return [line for line, _ in frame_lines(experiment.view, width, height)]


class TestFrame:
    @pytest.mark.parametrize("width", [1, 10, 40, 80, 132, 300])
    @pytest.mark.parametrize("height", [1, 2, 5, 12, 24, 100])
    def test_fits(self, width: int, height: int) -> None:
        experiment = busy_experiment(scheduler_info=lambda: "AsyncHyperBand: 12 stopped")
        lines = frame(experiment, width, height)
        assert 1 <= len(lines) <= height
        assert max(map(cell_len, lines)) <= width
        assert not any("\n" in line or "\t" in line for line in lines)

    def test_narrow(self) -> None:
        lines = frame(busy_experiment(), 40, 12)
        assert lines[0].startswith("exp · ")
        heading = next(line for line in lines if line.startswith("trial"))
        assert heading.split() == ["trial", "status", "lr", "loss", "iter"]
        assert lines[lines.index(heading) + 1].split() == ["★00003", "RUNNING", "0.42857", "0.001", "1"]
        assert lines[-1] == "columns left out: act, time, and 2 more"

    def test_columns_that_do_not_fit_are_named(self) -> None:
        lines = frame(busy_experiment(), 80, 12)
        heading = next(line for line in lines if line.startswith("trial"))
        assert heading.split() == ["trial", "status", "lr", "act", "loss", "iter", "time", "accuracy"]
        assert lines[-1] == "columns left out: nested/f1"
        assert not any("columns left out" in line for line in frame(busy_experiment(), 160, 30))

    def test_metrics_beyond_the_first_few_are_named(self) -> None:
        experiment = MadeUpExperiment()
        trial = experiment.add(lr=1)
        experiment.become(trial, "RUNNING")
        experiment.report(trial, loss=1, **{f"metric_{number}": number for number in range(50)})
        lines = frame(experiment, 200, 30)
        named, count = re.fullmatch(r"columns left out: (.*), and (\d+) more", lines[-1]).groups()  # type: ignore[union-attr]
        assert len(lines[-1]) <= 200
        assert named.split(", ") == [f"metric_{number}" for number in range(3, 50 - int(count))]

    def test_many_parameters_are_named(self) -> None:
        experiment = MadeUpExperiment(metric=None)
        experiment.become(experiment.add(**{f"parameter_{number}": number for number in range(40)}), "RUNNING")
        lines = frame(experiment, 2000, 30)
        assert "parameter_29" in lines[2]
        assert lines[-1].startswith("columns left out: parameter_30, parameter_31")

    def test_wide(self) -> None:
        lines = frame(busy_experiment(), 160, 30)
        assert lines[0].startswith("exp · 38/60 trials · 16 running · 6 paused · 1 pending · 6 failed · ")
        assert lines[0].endswith(" · CPU 1/2 · best loss 0.001 (trial 00003)")
        assert lines[2].split() == ["trial", "status", "lr", "act", "loss", "iter", "time", "accuracy", "nested/f1"]
        assert lines[3].split() == [
            "★00003",
            "RUNNING",
            "0.42857",
            "漢字の活性化",
            "0.001",
            "1",
            "1.5",
            "s",
            "0.5",
            "0.25",
        ]
        assert "[bold]tanh[/bold] x" in lines[4], "markup is shown as it is"

    def test_columns_are_aligned(self) -> None:
        lines = frame(busy_experiment(), 160, 30)
        heading = next(line for line in lines if line.startswith("trial"))
        place = heading.index("iter") + len("iter")
        for line in lines[lines.index(heading) + 1 : -1]:
            before = line[: next(end for end in range(len(line) + 1) if cell_len(line[:end]) >= place)]
            assert before.endswith(" 1"), line

    def test_what_matters_most(self) -> None:
        view = busy_experiment().view
        everything = shown_trials(view, 100)
        assert everything[0].trial_id.endswith("00003")
        statuses = [trial.status for trial in everything[1:]]
        assert list(dict.fromkeys(statuses)) == ["RUNNING", "PAUSED", "TERMINATED", "ERROR"]
        assert len(set(everything)) == len(everything)
        few = [trial.status for trial in shown_trials(view, 8)]
        assert few == ["RUNNING"] * 6 + ["ERROR"] * 2, "errors keep a place"

    def test_what_is_left_out_is_counted(self) -> None:
        lines = frame(busy_experiment(), 160, 12)
        shown_running = sum("RUNNING" in line for line in lines)
        shown_errors = sum("ERROR" in line for line in lines)
        assert lines[-1] == f"… {16 - shown_running} more running, 6 more paused, {6 - shown_errors} more failed"

    def test_newest_of_the_ended(self) -> None:
        experiment = MadeUpExperiment(metric=None)
        trials = [experiment.ended(1.0) for _ in range(9)]
        assert shown_trials(experiment.view, 2) == [trials[8], trials[7]]

    def test_nothing_to_show_yet(self) -> None:
        (line,) = frame(MadeUpExperiment(total=None), 80, 24)
        assert line.startswith("exp · 0 trials ended · ")

    def test_what_the_scheduler_says(self) -> None:
        def broken() -> str:
            raise KeyError("oh")

        assert frame(busy_experiment(scheduler_info=lambda: "ASHA:\n12 stopped"), 160, 30)[1] == "ASHA: 12 stopped"
        assert frame(busy_experiment(scheduler_info=broken), 160, 30)[1].endswith(
            "debug_string() raised KeyError('oh')"
        )

    def test_a_draw_looks_at_few_of_many_trials(self) -> None:
        """10,000 trials: what a drawing costs does not grow with them."""
        experiment = busy_experiment(10_000)
        looked_at: set[str] = set()

        class Watched(Trial):
            def __getattribute__(self, name: str) -> Any:
                if name in ("evaluated_params", "last_result"):
                    looked_at.add(object.__getattribute__(self, "trial_id"))
                return object.__getattribute__(self, name)

        for trial in experiment.view.trials:
            trial.__class__ = Watched
        lines = frame(experiment, 120, 40)
        assert len(lines) == 40
        assert len(looked_at) <= 40


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestDrawing:
    @pytest.fixture
    def terminal(self, monkeypatch: pytest.MonkeyPatch) -> Terminal:
        for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "100"), ("LINES", "30")):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("NO_COLOR", raising=False)
        return Terminal()

    def test_rows_are_drawn_now_and_then(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1000.0
        monkeypatch.setattr("paceline.run.live_display.time.monotonic", lambda: now)
        progress = make_experiment_progress(2, None, terminal)
        experiment = MadeUpExperiment(progress)
        progress.started(experiment.view)
        trial = experiment.add()
        experiment.become(trial, "RUNNING")
        frames = 0
        for number in range(1000):
            now = 1000.0 + number * DRAW_INTERVAL_S / 10
            before = len(terminal.getvalue())
            experiment.report(trial, loss=number)
            progress.tick()
            frames += len(terminal.getvalue()) > before
        progress.close()
        assert 98 <= frames <= 101

    def test_closing_without_a_start(self, terminal: Terminal) -> None:
        progress = make_experiment_progress(3, None, terminal)
        progress.tick()
        progress.finished(ExperimentEnd("failed"))
        progress.close()
        progress.close()
        assert terminal.getvalue() == ""

    def test_closing_leaves_no_table_and_gives_the_streams_back(self, terminal: Terminal) -> None:
        streams = sys.stdout, sys.stderr
        progress = make_experiment_progress(3, None, terminal)
        progress.started(busy_experiment().view)
        progress.close()
        assert (sys.stdout, sys.stderr) == streams
        assert "\x1b[?25l" not in terminal.getvalue(), "the cursor was never hidden"

    def test_a_terminal_that_goes_away_changes_nothing(self, terminal: Terminal) -> None:
        progress = make_experiment_progress(3, None, terminal)
        experiment = MadeUpExperiment(progress)
        progress.started(experiment.view)
        terminal.close()
        experiment.ended(1.0)
        progress.tick()
        progress.output(experiment.view.trials[0], None, "x\n")
        progress.finished(ExperimentEnd("finished"))
        progress.close()
        assert experiment.view.counts["TERMINATED"] == 1


SCRIPT = """
from paceline.run import live_display
from paceline.tune.progress.progress import make_experiment_progress
from paceline.tune.progress.view import ExperimentEnd
from tests.tune.progress.made_up import MadeUpExperiment

live_display.DRAW_INTERVAL_S = 0  # every row is drawn
progress = make_experiment_progress(3)
experiment = MadeUpExperiment(progress)
progress.started(experiment.view)
best = experiment.ended(0.5, lr=0.1)
running = experiment.add(lr=0.2)
experiment.become(running, "RUNNING")
experiment.report(running, loss=0.75)
progress.output(running, 1, "worker line\\n\\x1b]0;retitled\\x07\\x1b[2Jclear\\n")
progress.output(running, None, "x" * 5000 + "\\nafter\\n")
print("a user's own print")
experiment.fail(running, ValueError("[bold]boom[/bold]"))
progress.warning("look [bold]out[/bold] :smile:")
progress.finished(ExperimentEnd("finished", "Tuner.restore(...)"))
progress.close()
"""


class TestInATerminal:
    def run_in_terminal(self, tmp_path: Path, **changes: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        root = str(Path(__file__).parents[3])
        child = pexpect.spawn(
            sys.executable,
            [str(script)],
            env={**inherited, "PYTHONPATH": root, "TERM": "xterm-256color", **changes},
            dimensions=(20, 60),
            timeout=60,
        )
        shown: str = child.read().decode()
        child.close()
        assert child.exitstatus == 0, shown
        return shown

    def test_view(self, tmp_path: Path) -> None:
        raw = self.run_in_terminal(tmp_path)
        shown = printable(raw)
        assert "exp started: 8 trials, files in /results/exp" in shown
        assert "★00000  TERMINATED  0.1" in shown
        assert "00001  RUNNING     0.2" in shown
        assert "(trial 00001 rank 1) worker line\n(trial 00001 rank 1) clear\n" in shown
        assert "(trial 00001) after\n" in shown
        assert "a user's own print" in shown
        assert "Failed: train_fn_4913f_00001: ValueError: [bold]boom[/bold]" in shown
        assert "look [bold]out[/bold] :smile:" in shown
        end = shown[shown.index("exp finished after") :]
        assert "1 finished, 1 failed" in end
        assert "Best trial: train_fn_4913f_00000, loss 0.5" in end
        assert "To continue: Tuner.restore(...)" in end
        assert "retitled" not in raw
        assert "\x1b[2J" not in raw

    def test_a_terminal_that_can_do_nothing_gets_plain_lines(self, tmp_path: Path) -> None:
        shown = self.run_in_terminal(tmp_path, TERM="dumb")
        assert "train_fn_4913f_00000 TERMINATED: lr=0.1, loss 0.5" in shown
        assert "★" not in shown
