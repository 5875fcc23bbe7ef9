"""CLIReporter, JupyterNotebookReporter and reporters of the user's own."""

from __future__ import annotations

import io
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline.air import RunConfig
from paceline.air.errors import ConfigError
from paceline.run.spec import Trial
from paceline.tune.progress.progress import make_experiment_progress
from paceline.tune.progress.view import ExperimentEnd
from paceline.tune.progress_reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter
from tests.tune.progress.made_up import MadeUpExperiment, make_row, make_trial

Out = pytest.CaptureFixture[str]


def some_trials() -> list[Trial]:
    return [
        make_trial(0, "TERMINATED", make_row(3, loss=0.3, acc=0.5, eval={"f1": 0.25}), lr=0.1, model__width=8),
        make_trial(1, "RUNNING", make_row(2, loss=0.1, acc=0.75, eval={"f1": 0.5}), lr=0.01, model__width=16),
        make_trial(2, "ERROR", make_row(1, loss=float("nan")), lr=1.0, model__width=32),
        make_trial(3, "PENDING", lr=0.5, model__width="w" * 50),
    ]


def table(out: Out, reporter: ProgressReporter, trials: list[Trial], done: bool = True) -> list[list[str]]:
    """The lines of the progress table of one report, as words."""
    reporter.report(trials, done)
    _, *blocks = out.readouterr().out.split("\n\n")
    return [re.split(r"\s{2,}", line.strip()) for line in blocks[0].splitlines()] if blocks else []


class TestTables:
    def test_what_is_shown_by_itself(self, capsys: Out) -> None:
        reporter = CLIReporter(metric="loss", mode="min")
        reporter.report(some_trials(), False, "CPU 1/2", "a scheduler")
        head, progress, errors = capsys.readouterr().out.split("\n\n")
        assert head.startswith("== 4 trials (1 RUNNING, 1 TERMINATED, 1 ERROR, 1 PENDING), ")
        assert head.splitlines()[1:] == [
            "CPU 1/2",
            "a scheduler",
            "Best trial: train_fn_4913f_00001, loss 0.1, lr=0.01, width=16",
        ]
        lines = [line.split() for line in progress.splitlines()]
        assert lines[0] == ["trial", "status", "lr", "width", "loss", "iter", "time", "acc", "eval/f1"]
        assert lines[1] == ["train_fn_4913f_00001", "RUNNING", "0.01", "16", "0.1", "2", "3.0", "s", "0.75", "0.5"]
        assert errors.splitlines()[1].split() == ["train_fn_4913f_00002", "1", "/results/exp/trial_2/error.txt"]

    def test_chosen_columns(self, capsys: Out) -> None:
        reporter = CLIReporter(
            metric_columns=["eval/f1", "training_iteration"], parameter_columns=["model/width", "lr"]
        )
        heading, first, *_ = table(capsys, reporter, some_trials())
        assert heading == ["trial", "status", "model/width", "lr", "eval/f1", "training_iteration"]
        assert first == ["train_fn_4913f_00001", "RUNNING", "16", "0.01", "0.5", "2"]

    def test_columns_with_titles(self, capsys: Out) -> None:
        reporter = CLIReporter(metric_columns={"acc": "accuracy %"}, parameter_columns={"nested/depth": "depth"})
        heading, first, *_ = table(capsys, reporter, some_trials())
        assert heading == ["trial", "status", "depth", "accuracy %"]
        assert first == ["train_fn_4913f_00001", "RUNNING", "1", "0.75"]

    def test_added_columns(self, capsys: Out) -> None:
        reporter = CLIReporter(infer_limit=1)
        reporter.add_metric_column("eval/f1", "F1")
        reporter.add_metric_column("loss")
        reporter.add_parameter_column("seed")
        heading, first, *_ = table(capsys, reporter, some_trials())
        assert heading == ["trial", "status", "lr", "width", "seed", "iter", "time", "loss", "F1"]
        assert first[4] == "7"

    def test_infer_limit(self, capsys: Out) -> None:
        heading, *_ = table(capsys, CLIReporter(infer_limit=0), some_trials())
        assert heading == ["trial", "status", "lr", "width", "iter", "time"]

    def test_long_values_are_cut_but_names_are_not(self, capsys: Out) -> None:
        rows = table(capsys, CLIReporter(max_column_length=6), some_trials())
        assert rows[-1][:4] == ["train_fn_4913f_00003", "PENDI…", "0.5", "wwwww…"]

    def test_sorted_by_metric(self, capsys: Out) -> None:
        trials = some_trials()
        rows = table(capsys, CLIReporter(sort_by_metric=True, metric="loss", mode="min"), trials)
        assert [row[0][-1] for row in rows[1:]] == ["1", "0", "2", "3"]
        rows = table(capsys, CLIReporter(sort_by_metric=True, metric="loss", mode="max"), trials)
        assert [row[0][-1] for row in rows[1:]] == ["0", "1", "2", "3"]

    def test_limits_of_rows(self, capsys: Out) -> None:
        trials = [make_trial(number, "ERROR", make_row(1)) for number in range(50)]
        CLIReporter(max_progress_rows=5, max_error_rows=3).report(trials, True)
        _, progress, errors = capsys.readouterr().out.split("\n\n")
        assert len(progress.splitlines()) == 1 + 5 + 1
        assert progress.splitlines()[-1] == "… 45 more trials"
        assert len(errors.splitlines()) == 1 + 3 + 1
        assert errors.splitlines()[-1] == "… 47 more failed"

    def test_one_more(self, capsys: Out) -> None:
        trials = [make_trial(number, "RUNNING", make_row(1)) for number in range(2)]
        CLIReporter(max_progress_rows=1).report(trials, True)
        assert capsys.readouterr().out.endswith("\n… 1 more trial\n")
        CLIReporter().report(trials[:1], True)
        assert capsys.readouterr().out.startswith("== 1 trial (1 RUNNING), ")

    def test_columns_that_do_not_fit_are_named(self, capsys: Out) -> None:
        trials = [make_trial(0, "RUNNING", make_row(1), **{f"parameter_{number}": "x" * 20 for number in range(30)})]
        CLIReporter().report(trials, True)
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("columns left out: parameter_")
        assert last.endswith("parameter_29")

    def test_total(self, capsys: Out) -> None:
        CLIReporter(total_samples=9).report([], False)
        assert capsys.readouterr().out.startswith("== 0/9 trials (none yet), ")

    @pytest.mark.parametrize(("wanted", "verbose", "tables"), [(None, 1, 0), (None, 2, 1), (True, 1, 1), (False, 3, 0)])
    def test_intermediate_tables(self, capsys: Out, wanted: bool | None, verbose: int, tables: int) -> None:
        reporter = CLIReporter(print_intermediate_tables=wanted)
        reporter.setup(verbose=verbose)
        trials = some_trials()[:2]
        assert bool(table(capsys, reporter, trials, done=False)) == tables
        assert table(capsys, reporter, trials, done=True)

    def test_frequency(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 50.0
        monkeypatch.setattr("paceline.tune.progress.reporters.time.monotonic", lambda: now)
        reporter = CLIReporter(max_report_frequency=3)
        assert reporter.should_report([])
        assert not reporter.should_report([])
        assert reporter.should_report([], done=True)
        now = 53.5
        assert reporter.should_report([])

    def test_own_metric_goes_first(self) -> None:
        assert not CLIReporter(metric="acc", mode="max").set_search_properties("loss", "min")
        assert CLIReporter().set_search_properties("loss", "min")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"metric_columns": "loss"},
            {"parameter_columns": {"lr": 1}},
            {"max_progress_rows": 0},
            {"max_report_frequency": None},
            {"mode": "best"},
        ],
    )
    def test_wrong_arguments(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            CLIReporter(**wrong)


class TestInAnExperiment:
    def run(self, reporter: Any, verbose: int = 3) -> str:
        stream = io.StringIO()
        progress = make_experiment_progress(verbose, reporter, stream)
        experiment = MadeUpExperiment(progress)
        progress.started(experiment.view)
        experiment.ended(0.5, lr=0.1)
        progress.tick()
        progress.output(experiment.view.trials[0], None, "hello\n")
        experiment.fail(experiment.add(), "boom")
        progress.finished(ExperimentEnd("finished"))
        progress.close()
        return stream.getvalue()

    def test_reporter_instead_of_state_and_ended_trials(self, capsys: Out) -> None:
        said = self.run(CLIReporter())
        reported = capsys.readouterr().out
        assert reported.count("== 1/8 trials (1 RUNNING), ") == 1
        assert reported.count("== 2/8 trials (1 TERMINATED, 1 ERROR), ") == 1
        assert "Best trial: train_fn_4913f_00000, loss 0.5, lr=0.1" in reported
        assert "CPU 1/2" in reported
        assert said.splitlines()[:3] == [
            "exp started: 8 trials, files in /results/exp",
            "(trial 00000) hello",
            "Failed: train_fn_4913f_00001: boom (log: /results/exp/trial_1/logs)",
        ]
        assert "exp finished after" in said

    def test_silent(self, capsys: Out) -> None:
        assert self.run(CLIReporter(), verbose=0) == ""
        assert capsys.readouterr() == ("", "")

    def test_own_class(self) -> None:
        calls: list[Any] = []

        class Own(ProgressReporter):
            def setup(self, start_time: float | None = None, **properties: Any) -> None:
                calls.append({name: properties[name] for name in ("total_samples", "metric", "mode")})

            def should_report(self, trials: list[Trial], done: bool = False) -> bool:
                return done

            def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
                calls.append(([str(trial) for trial in trials], done, sys_info))

        self.run(Own())
        assert calls == [
            {"total_samples": 8, "metric": "loss", "mode": "min"},
            (["train_fn_4913f_00000", "train_fn_4913f_00001"], True, ("CPU 1/2", "")),
        ]

    def test_one_that_raises_is_left_out(self) -> None:
        class Broken(CLIReporter):
            def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
                raise RuntimeError("oh no")

        said = self.run(Broken())
        assert said.count("The progress reporter Broken is left out from now on, it raised RuntimeError('oh no')") == 1
        line = Broken.report.__code__.co_firstlineno + 1
        assert f"RuntimeError('oh no') (test_reporters.py:{line})." in said
        assert "exp finished after" in said

    def test_methods_that_are_missing_are_named(self) -> None:
        assert "should_report(self, trials, done=False)" in self.run(ProgressReporter())

    def test_a_stream_that_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed = io.StringIO()
        closed.close()
        monkeypatch.setattr(sys, "stdout", closed)
        assert "left out" not in self.run(CLIReporter())


class TestRunConfig:
    def test_takes_a_reporter(self) -> None:
        reporter = CLIReporter()
        assert RunConfig(progress_reporter=reporter).progress_reporter is reporter

    @pytest.mark.parametrize("wrong", [CLIReporter, "cli", 3])
    def test_refuses_what_is_none(self, wrong: Any) -> None:
        with pytest.raises(ConfigError, match="progress_reporter"):
            RunConfig(progress_reporter=wrong)


class TestNotebook:
    def test_without_a_notebook_it_prints(self, capsys: Out) -> None:
        assert table(capsys, JupyterNotebookReporter(infer_limit=0), some_trials())[0][0] == "trial"

    @pytest.fixture
    def shown(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The cell's outputs, as a notebook would show them."""
        outputs: list[str] = []

        def display(content: str, display_id: bool = False) -> Any:
            place = len(outputs)
            outputs.append(content)
            return SimpleNamespace(update=lambda content: outputs.__setitem__(place, content))

        package, module = ModuleType("IPython"), ModuleType("IPython.display")
        vars(package).update(get_ipython=object, display=module)
        vars(module).update(display=display, HTML=str)
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", module)
        return outputs

    def test_overwrites(self, shown: list[str], capsys: Out) -> None:
        reporter = JupyterNotebookReporter()
        reporter.report([make_trial(0, "RUNNING", tag="<b>")], False)
        reporter.report(some_trials(), True)
        assert len(shown) == 1
        assert "== 4 trials" in shown[0]
        assert capsys.readouterr().out == ""

    def test_does_not_overwrite(self, shown: list[str]) -> None:
        reporter = JupyterNotebookReporter(overwrite=False)
        reporter.report([make_trial(0, "RUNNING", tag="<b>")], False)
        reporter.report(some_trials(), True)
        assert len(shown) == 2
        assert "&lt;b&gt;" in shown[0]


@pytest.mark.parametrize("reporter", [CLIReporter, JupyterNotebookReporter])
def test_an_argument_that_there_is_not_is_answered_with_the_right_one(reporter: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{reporter.__name__}\(\).*'columns'.*metric_columns\?"):
        reporter(columns=["loss"])
    with pytest.raises(TypeError, match=r"max_progress_rows\?"):
        reporter(max_progres_rows=3)
