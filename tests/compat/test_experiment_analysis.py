"""ExperimentAnalysis: the older questions, answered from a grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import ConfigError, TuneError
from paceline.compat.experiment_analysis import ExperimentAnalysis
from tests.tune.outcomes import Outcomes


@pytest.fixture
def outcomes(tmp_path: Path) -> Outcomes:
    """Three trials: the second is the best at the end, the first was the best once, the third failed at once."""
    made = Outcomes(tmp_path)
    kept = []
    for number, loss in enumerate((3.0, 2.0, 2.5)):
        directory = tmp_path / f"checkpoint_{number}"
        directory.mkdir()
        kept.append((Checkpoint.from_directory(directory), {"loss": loss, "training_iteration": number + 1}))
    made.add([{"loss": 1.0, "time_total_s": 1.0}, {"loss": 5.0, "time_total_s": 2.0}], config={"lr": 0.1})
    rows = [{"loss": row["loss"], "time_total_s": 0.5} for _, row in kept]
    made.add(rows, config={"lr": 0.2, "model": {"width": 4}}, checkpoints=kept)
    made.add([], config={"lr": 0.3}, error=ValueError("at once"))
    return made


@pytest.fixture
def analysis(outcomes: Outcomes) -> ExperimentAnalysis:
    return ExperimentAnalysis(outcomes.grid(), default_metric="loss", default_mode="min")


def test_the_best_trial(analysis: ExperimentAnalysis, outcomes: Outcomes, tmp_path: Path) -> None:
    best = outcomes.made[1].trial
    assert analysis.best_trial is best
    assert analysis.best_config == {"lr": 0.2, "model": {"width": 4}}
    assert analysis.best_logdir == str(tmp_path / "abcde_00001")
    assert analysis.best_result["loss"] == 2.5
    assert analysis.best_result_df["config/model/width"].to_dict() == {"abcde_00001": 4}
    assert analysis.best_dataframe["loss"].tolist() == [3.0, 2.0, 2.5]
    assert analysis.best_checkpoint == Checkpoint.from_directory(tmp_path / "checkpoint_1")


def test_the_best_by_another_measure(analysis: ExperimentAnalysis, tmp_path: Path) -> None:
    first = analysis.trials[0]
    assert analysis.get_best_trial(scope="all") is first
    assert analysis.get_best_trial("loss", "max") is first
    assert analysis.get_best_config("loss", "max") == {"lr": 0.1}
    assert analysis.get_best_logdir(scope="all") == str(tmp_path / "abcde_00000")


def test_a_failed_trial_is_the_best_only_if_asked_for(outcomes: Outcomes) -> None:
    outcomes.add([{"loss": 0.0}] * 9, error=ValueError("later"))
    analysis = ExperimentAnalysis(outcomes.grid(), default_metric="loss", default_mode="min")
    assert analysis.best_trial is analysis.trials[1]
    assert analysis.get_best_trial(include_failed=True) is analysis.trials[3]
    assert analysis.get_last_checkpoint() is None  # of the one that got furthest


def test_no_best_trial(outcomes: Outcomes) -> None:
    analysis = ExperimentAnalysis(outcomes.grid())
    with pytest.raises(ConfigError, match=r"metric=.*loss"):
        _ = analysis.best_trial
    with pytest.warns(UserWarning, match="'accuracy'"):
        assert analysis.get_best_trial("accuracy", "max") is None
    with pytest.warns(UserWarning, match="'accuracy'"):
        assert analysis.get_best_config("accuracy", "max") is None
    with pytest.raises(TuneError, match="accuracy"):
        _ = ExperimentAnalysis(outcomes.grid(), "accuracy", "max").best_config


def test_checkpoints_of_a_trial(analysis: ExperimentAnalysis, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"checkpoint_{number}") for number in range(3)]
    for trial in (analysis.trials[1], "abcde_00001", str(tmp_path / "abcde_00001") + "/"):
        assert analysis.get_trial_checkpoints_paths(trial) == list(zip(paths, [3.0, 2.0, 2.5], strict=True))
        best = analysis.get_best_checkpoint(trial, "loss", "max")
        assert best is not None
        assert best.path == paths[0]
    newest = analysis.get_last_checkpoint()  # of the trial that got furthest
    assert newest is not None
    assert newest.path == paths[2]
    assert analysis.get_last_checkpoint(analysis.trials[0]) is None
    assert analysis.get_best_checkpoint(analysis.trials[0]) is None
    with pytest.raises(ConfigError, match="no trial 'abcde_7'"):
        analysis.get_last_checkpoint("abcde_7")


def test_tables(analysis: ExperimentAnalysis, tmp_path: Path) -> None:
    frame = analysis.dataframe()
    assert frame["config/lr"].tolist() == [0.1, 0.2, 0.3]
    assert analysis.dataframe("loss", "min")["loss"].tolist()[:2] == [1.0, 2.0]
    assert analysis.results_df.loc["abcde_00001", "loss"] == 2.5
    assert analysis.results["abcde_00002"] == {}
    frames = analysis.trial_dataframes
    assert frames[str(tmp_path / "abcde_00000")]["loss"].tolist() == [1.0, 5.0]
    assert len(frames[str(tmp_path / "abcde_00002")]) == 0
    assert analysis.get_all_configs()[str(tmp_path / "abcde_00001")]["lr"] == 0.2
    assert analysis.get_all_configs(prefix=True)[str(tmp_path / "abcde_00001")] == {
        "config/lr": 0.2,
        "config/model/width": 4,
    }


def test_stats_and_repr(analysis: ExperimentAnalysis) -> None:
    assert analysis.stats() == {
        "num_trials": 3,
        "num_terminated": 2,
        "num_errors": 1,
        "iterations_total": 5,
        "time_total_s": 2.5,
    }
    assert repr(analysis).startswith("ExperimentAnalysis(\n  trials=3")


def test_an_experiment_without_trials() -> None:
    analysis = ExperimentAnalysis(Outcomes().grid(), "loss", "min")
    assert (analysis.trials, analysis.results, len(analysis.results_df)) == ([], {}, 0)
    with pytest.raises(TuneError, match="no trials"):
        _ = analysis.best_trial


def test_tables_go_by_the_default_mode(outcomes: Outcomes) -> None:
    given = ExperimentAnalysis(outcomes.grid(), "loss", "min")
    assert list(given.dataframe("loss")["loss"])[:2] == [1.0, 2.0]
