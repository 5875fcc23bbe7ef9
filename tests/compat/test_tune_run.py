"""tune.run() and run_experiments(): what older code says, in terms of a Tuner."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, session
from paceline.air.errors import ConfigError, RestoreError, TuneError
from paceline.compat.experiment_analysis import ExperimentAnalysis
from paceline.compat.tune_experiment import TuneExperiment
from paceline.compat.tune_run import run, run_experiments
from paceline.run.callbacks import Callback
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search.sample import grid_search


@pytest.fixture(autouse=True)
def one_trial_after_the_other(results_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: how trials are run is a Tuner's business."""
    monkeypatch.setenv("PACELINE_ENGINE", "inline")


def square(config: dict[str, Any]) -> None:
    """Rows with a checkpoint each. A file per x says that it ran; without `heal` x=1 fails."""
    if config.get("marks"):
        with open(Path(config["marks"]) / str(config["x"]), "a") as file:
            file.write("ran\n")
        if config["x"] == 1 and not (Path(config["marks"]) / "heal").exists():
            raise ValueError("not yet")
    for step in range(config.get("rows", 2)):
        session.report({"y": config["x"] ** 2 + step}, checkpoint=Checkpoint.from_dict({"step": step}))


def quiet(*args: Any, **settings: Any) -> ExperimentAnalysis:
    return run(*args, **{"verbose": 0, **settings})


def runs_of(marks: Path) -> dict[int, int]:
    return {int(path.name): path.read_text().count("ran") for path in marks.iterdir() if path.name.isdigit()}


def test_a_search(results_dir: Path) -> None:
    analysis = quiet(
        square, name="squares", config={"x": grid_search([3, 1, 2])}, metric="y", mode="min", num_samples=2
    )
    assert len(analysis.trials) == 6
    assert analysis.best_config == {"x": 1}
    assert analysis.best_result["y"] == 2
    assert sorted(analysis.dataframe("y", "min")["y"]) == [1, 1, 4, 4, 9, 9]
    assert Path(analysis.best_logdir).parent == results_dir / "squares"
    assert analysis.best_checkpoint is not None
    assert analysis.best_checkpoint.to_dict()["step"] == 0
    journal = next((results_dir / "squares").glob("*.jsonl"))
    for place in (results_dir / "squares", journal):
        read = ExperimentAnalysis(place)
        assert read.best_config == {"x": 1}
        assert read.best_dataframe["y"].tolist() == [1, 2]
        assert read.dataframe().equals(analysis.dataframe())


def test_a_metric_of_the_scheduler_is_the_default() -> None:
    scheduler = ASHAScheduler(metric="y", mode="max", grace_period=2)
    assert quiet(square, config={"x": grid_search([1, 3, 2])}, scheduler=scheduler).best_config == {"x": 3}


def test_settings_reach_the_trials(tmp_path: Path) -> None:
    analysis = quiet(
        square,
        config={"x": 5},
        local_dir=tmp_path / "elsewhere",
        stop={"training_iteration": 1},
        keep_checkpoints_num=1,
        resources_per_trial={"cpu": 1},
    )
    trial = analysis.trials[0]
    assert Path(trial.local_path).is_relative_to(tmp_path / "elsewhere")
    assert analysis.results[trial.trial_id]["training_iteration"] == 1
    assert len(analysis.get_trial_checkpoints_paths(trial)) == 1


def test_a_failed_trial_raises_unless_told_otherwise(tmp_path: Path) -> None:
    space = {"x": grid_search([1, 2]), "marks": str(tmp_path)}
    with pytest.raises(TuneError, match=r"(?s)1 of 2 .*not yet") as caught:
        quiet(square, config=space, metric="y", mode="min")
    assert caught.value.analysis.best_config["x"] == 2  # type: ignore[attr-defined]
    analysis = quiet(square, config=space, metric="y", mode="min", raise_on_failed_trial=False)
    assert [trial.status for trial in analysis.trials] == ["ERROR", "TERMINATED"]


def test_resume(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    settings: dict[str, Any] = {
        "config": {"x": grid_search([1, 2]), "marks": str(marks)},
        "name": "resumed",
        "raise_on_failed_trial": False,
    }
    with pytest.raises(RestoreError):
        quiet(square, resume=True, **settings)
    assert len(quiet(square, resume="AUTO", **settings).trials) == 2
    assert runs_of(marks) == {1: 1, 2: 1}
    assert [trial.status for trial in quiet(square, resume="AUTO", **settings).trials] == ["ERROR", "TERMINATED"]
    assert runs_of(marks) == {1: 1, 2: 1}  # neither the finished nor the failed one was run again
    (marks / "heal").touch()
    analysis = quiet(square, resume="ERRORED_ONLY", **settings)
    assert [trial.status for trial in analysis.trials] == ["TERMINATED", "TERMINATED"]
    assert runs_of(marks) == {1: 2, 2: 1}
    analysis = quiet(square, resume=True, num_samples=2, **settings)
    assert [trial.config["x"] for trial in analysis.trials] == [1, 2, 1, 2]
    assert runs_of(marks) == {1: 3, 2: 2}


class Interrupts(Callback):
    """Ctrl-C at the first row."""

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if result["training_iteration"] == 1:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_resume_by_a_name_with_parameters_in_it(tmp_path: Path, scheme: str) -> None:
    settings = {"storage_path": f"{scheme}{tmp_path}", "name": "x=1 of (2): 50%", "config": {"x": 2, "rows": 1}}
    first = quiet(square, **settings)
    assert quiet(square, resume=True, **settings).trials[0].trial_id == first.trials[0].trial_id


@pytest.mark.parametrize("resume", ["ERRORED_ONLY", pytest.param("AUTO+RESTART_ERRORED_ONLY", marks=pytest.mark.slow)])
def test_resume_of_failed_trials_only(tmp_path: Path, resume: str) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    settings: dict[str, Any] = {
        "config": {"x": grid_search([1, 2]), "marks": str(marks), "rows": 50},
        "name": "failed",
        "max_concurrent_trials": 1,
    }
    with pytest.raises(KeyboardInterrupt):
        quiet(square, callbacks=[Interrupts()], **settings)
    assert runs_of(marks) == {1: 1, 2: 1}
    (marks / "heal").touch()
    analysis = quiet(square, resume=resume, **settings)
    assert runs_of(marks) == {1: 2, 2: 1}
    reached = [analysis.results[trial.trial_id]["training_iteration"] for trial in analysis.trials]
    assert reached[0] == 50
    assert 1 <= reached[1] < 50


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"num_sample": 3}, TypeError, r"'num_sample'.*num_samples\?"),
        ({"resume": "PROMPT"}, ConfigError, "resume.*'PROMPT'"),
        ({"resume": "AUTO+ALL"}, ConfigError, r"AUTO\+ERRORED"),
        ({"resume": True}, ConfigError, "name="),
        ({"restore": "/some/checkpoint"}, ConfigError, "resume_from_checkpoint"),
        ({"checkpoint_config": CheckpointConfig(num_to_keep=2), "checkpoint_freq": 1}, ConfigError, "twice"),
        ({"fail_fast": True, "max_failures": 2}, ConfigError, "fail_fast"),
        ({"mode": "least"}, ConfigError, "mode"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        quiet(square, config={"x": 1}, **settings)


def test_settings_of_other_machinery_are_passed_over() -> None:
    with pytest.warns(UserWarning, match="server_port, export_formats") as caught:
        analysis = quiet(square, config={"x": 1}, server_port=4321, export_formats=["h5"], restore=None, loggers=None)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(analysis.trials) == 1


def test_experiments_one_after_the_other(results_dir: Path) -> None:
    trials = run_experiments(
        [
            TuneExperiment("first", square, config={"x": grid_search([1, 2])}),
            TuneExperiment("second", square, config={"x": 3}),
        ],
        verbose=0,
    )
    assert [Path(trial.local_path).parent.name for trial in trials] == ["first", "first", "second"]
    assert [trial.config["x"] for trial in trials] == [1, 2, 3]
    as_dict = run_experiments({"third": {"run": square, "config": {"x": 4}, "num_samples": 2}}, verbose=0)
    assert [trial.config for trial in as_dict] == [{"x": 4}] * 2
    assert (results_dir / "third").is_dir()


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ([], ConfigError, "list of Experiment"),
        ([square], ConfigError, "list of Experiment"),
        ({"first": {"config": {}}}, ConfigError, "'run'"),
        ({"first": {"run": square, "confg": {}}}, TypeError, r"'confg'.*config\?"),
    ],
)
def test_what_is_no_experiment(given: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        run_experiments(given, verbose=0)


def test_checkpoint_settings_one_by_one() -> None:
    config = TuneExperiment(
        "e", square, keep_checkpoints_num=3, checkpoint_score_attr="min-loss", checkpoint_freq=5, checkpoint_at_end=True
    ).run_config()
    assert config.checkpoint_config == CheckpointConfig(
        num_to_keep=3,
        checkpoint_score_attribute="loss",
        checkpoint_score_order="min",
        checkpoint_frequency=5,
        checkpoint_at_end=True,
    )
    assert TuneExperiment("e", square, checkpoint_score_attr="acc").run_config().checkpoint_config == CheckpointConfig(
        checkpoint_score_attribute="acc"
    )
