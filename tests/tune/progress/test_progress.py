"""Lines for pipes and files: what is said when, the summary, and that nobody listening changes nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from paceline.run.display import GuardedWriter, PlainDisplay
from paceline.tune.progress.progress import ExperimentProgress, make_experiment_progress
from paceline.tune.progress.view import ExperimentEnd
from tests.tune.progress.made_up import MadeUpExperiment

DONE = ExperimentEnd("finished")


def whole_experiment(progress: ExperimentProgress, summary: ExperimentEnd = DONE) -> MadeUpExperiment:
    experiment = MadeUpExperiment(progress, total=4)
    progress.started(experiment.view)
    experiment.ended(0.5, lr=0.1, model__act="relu")
    progress.output(experiment.view.trials[0], None, "hello\nyou\n")
    best = experiment.add(lr=0.01, model__act="\x1b[31mtanh\x1b[0m\n[bold]é[/bold]")
    experiment.become(best, "RUNNING")
    progress.output(best, 1, "from rank 1\n")
    experiment.report(best, loss=0.25)
    progress.tick()
    failed = experiment.add(lr=1.0, model__act="relu")
    experiment.become(failed, "RUNNING")
    experiment.fail(failed, ValueError("lr is too high\nlook at it"))
    experiment.become(best, "TERMINATED")
    progress.warning("careful")
    progress.note("noted")
    progress.finished(summary)
    progress.close()
    progress.close()
    return experiment


def shown(verbose: int, summary: ExperimentEnd = DONE) -> str:
    stream = io.StringIO()
    whole_experiment(make_experiment_progress(verbose, None, stream), summary)
    return stream.getvalue()


def test_silent(capfd: pytest.CaptureFixture[str]) -> None:
    assert shown(0) == ""
    assert capfd.readouterr() == ("", "")


def test_everything() -> None:
    text = shown(3)
    lines = text.splitlines()
    assert lines[:8] == [
        "exp started: 4 trials, files in /results/exp",
        "train_fn_4913f_00000 TERMINATED: lr=0.1, act=relu, loss 0.5, iteration 1",
        "(trial 00000) hello",
        "(trial 00000) you",
        "(trial 00001 rank 1) from rank 1",
        "Failed: train_fn_4913f_00002: ValueError: lr is too high (log: /results/exp/trial_2/logs)",
        "train_fn_4913f_00001 TERMINATED: lr=0.01, act=tanh [bold]é[/bold], loss 0.25, iteration 1",
        "Warning: careful",
    ]
    assert "\x1b" not in text, "no colours in pipes"


def test_beginning_errors_and_summary() -> None:
    lines = shown(1).splitlines()
    assert lines[0] == "exp started: 4 trials, files in /results/exp"
    assert lines[1].startswith("Failed: train_fn_4913f_00002")
    assert lines[2:4] == ["Warning: careful", "noted"]
    assert lines[4].startswith("exp finished after ")
    assert not any("(trial " in line for line in lines)


def test_summary() -> None:
    lines = shown(1, ExperimentEnd("interrupted", "Tuner.restore('/results/exp', train_fn).fit()")).splitlines()
    assert lines[4].startswith("exp interrupted after ")
    assert lines[4].endswith(" s: 2 finished, 1 failed")
    assert lines[5:] == [
        "Best trial: train_fn_4913f_00001, loss 0.25",
        "  parameters: lr=0.01, act=tanh [bold]é[/bold]",
        "  files: /results/exp/trial_1",
        "Failed trials:",
        "  train_fn_4913f_00002: ValueError: lr is too high (log: /results/exp/trial_2/logs)",
        "Files: /results/exp",
        "To continue: Tuner.restore('/results/exp', train_fn).fit()",
    ]


def test_parameters_that_are_left_out_are_counted() -> None:
    stream = io.StringIO()
    progress = make_experiment_progress(3, None, stream)
    experiment = MadeUpExperiment(progress)
    progress.started(experiment.view)
    experiment.ended(1.0, **{f"p{number}": number for number in range(15)})
    assert "p11=11, … and 3 more, loss 1, iteration 1\n" in stream.getvalue()


def test_a_search_in_which_nothing_is_left_to_do() -> None:
    stream = io.StringIO()
    progress = make_experiment_progress(3, None, stream)
    experiment = MadeUpExperiment(total=1)
    experiment.ended(1.0)
    progress.started(experiment.view)
    assert stream.getvalue() == "exp: 1 trial, ended earlier, files in /results/exp\n"


def test_summary_of_many_errors_is_short() -> None:
    stream = io.StringIO()
    progress = make_experiment_progress(1, None, stream)
    experiment = MadeUpExperiment(progress)
    progress.started(experiment.view)
    for _ in range(500):
        experiment.fail(experiment.add(), "x" * 10_000)
    before = len(stream.getvalue())
    progress.finished(DONE)
    summary = stream.getvalue()[before:]
    assert "and 490 more" in summary
    assert len(summary) < 5000


def test_state_comes_at_intervals() -> None:
    stream = io.StringIO()
    progress = ExperimentProgress(PlainDisplay(GuardedWriter(stream), detailed=True, interval_s=0.0))
    experiment = MadeUpExperiment(progress)
    progress.started(experiment.view)
    trial = experiment.add()
    experiment.become(trial, "RUNNING")
    experiment.report(trial, loss=0.5)
    line = stream.getvalue().splitlines()[-1]
    assert line.startswith("exp: 0/8 trials, 1 running, ")
    assert line.endswith("CPU 1/2, best loss 0.5 (trial 00000)")
    often = ExperimentProgress(PlainDisplay(GuardedWriter(stream), detailed=True))
    often.started(experiment.view)
    length = len(stream.getvalue())
    for _ in range(100):
        often.tick()
        often.row(trial, {})
    assert len(stream.getvalue()) == length, "five seconds have not passed"


def test_own_lines_do_not_continue_a_workers_line() -> None:
    stream = io.StringIO()
    progress = make_experiment_progress(3, None, stream)
    trial = MadeUpExperiment().add()
    progress.output(trial, 0, "no end")
    progress.warning("w")
    progress.output(trial, 1, "no end either")
    progress.close()
    assert stream.getvalue() == "(trial 00000 rank 0) no end\nWarning: w\n(trial 00000 rank 1) no end either\n"


def test_any_object_can_be_a_parameter() -> None:
    class Unspeakable:
        def __repr__(self) -> str:
            raise RuntimeError("no words")

    stream = io.StringIO()
    progress = make_experiment_progress(3, None, stream)
    experiment = MadeUpExperiment(progress)
    progress.started(experiment.view)
    experiment.ended(1.0, layers=list(range(10**6)), kind=Unspeakable, thing=Unspeakable(), f=len, none=None)
    line = stream.getvalue().splitlines()[-1]
    assert "layers=[0, 1, 2, 3, 4, 5, ...], kind=Unspeakable, thing=<Unspeakable instance at" in line
    assert "f=len, none=None, loss 1, iteration 1" in line


def test_parameters_of_the_same_name_keep_their_paths() -> None:
    stream = io.StringIO()
    progress = make_experiment_progress(3, None, stream)
    experiment = MadeUpExperiment(progress)
    progress.started(experiment.view)
    experiment.ended(1.0, encoder__lr=1, decoder__lr=2, decoder__depth=3)
    assert "encoder/lr=1, decoder/lr=2, depth=3" in stream.getvalue()


@pytest.mark.parametrize("verbose", [0, 1, 3])
def test_an_experiment_that_never_started(verbose: int) -> None:
    stream = io.StringIO()
    progress = make_experiment_progress(verbose, None, stream)
    progress.trial_changed(MadeUpExperiment().add())
    progress.tick()
    progress.finished(ExperimentEnd("failed"))
    progress.close()
    assert stream.getvalue() == ""


def test_a_reader_that_is_gone_changes_nothing() -> None:
    reader, writing_end = os.pipe()
    os.close(reader)
    stream = os.fdopen(writing_end, "w")
    experiment = whole_experiment(make_experiment_progress(3, None, stream))
    assert experiment.view.counts["TERMINATED"] == 2
    with pytest.raises(BrokenPipeError):  # the text object still holds what it could not write
        stream.close()


def test_a_closed_stream_changes_nothing() -> None:
    stream = io.StringIO()
    progress = make_experiment_progress(3, None, stream)
    stream.close()
    whole_experiment(progress)


def test_displays_are_loaded_when_needed() -> None:
    code = (
        "import sys; from paceline.tune.progress.progress import make_experiment_progress as make; p = make(3); "
        "p.tick(); p.close(); import paceline.tune.progress_reporter; "
        "print([m for m in ('rich', 'numpy', 'pandas', 'IPython') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_interrupted_experiment_calls_its_trials_interrupted() -> None:
    stream = io.StringIO()
    progress = make_experiment_progress(1, None, stream)
    experiment = MadeUpExperiment(progress, total=None)
    progress.started(experiment.view)
    for status in ("PAUSED", "RUNNING", "PENDING"):
        experiment.become(experiment.add(), status)
    progress.finished(ExperimentEnd("interrupted"))
    first, *_, last, _ = stream.getvalue().splitlines()
    assert first == "exp started: trials without end, files in /results/exp"
    assert last.endswith(": 2 interrupted, 1 not started")
