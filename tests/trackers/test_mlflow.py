"""MLflow with a database of its own: what is special about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import train, tune
from paceline.air.integrations.mlflow import MLflowLoggerCallback
from paceline.testing.tracker_contract import row, tracked_run
from paceline.trackers import RejectedError, RunGoneError
from paceline.trackers.mlflow import MLflowTracker, clean_key
from paceline.train import RunConfig
from tests.trackers.climbs import ROWS, trainer

pytest.importorskip("mlflow")


@pytest.fixture
def uri(tmp_path: Path, make_database: Callable[[Path], str]) -> str:
    return make_database(tmp_path / "mlflow.db")


def client(uri: str) -> Any:
    import mlflow

    return mlflow.MlflowClient(uri)


def only_run(uri: str, experiment: str) -> Any:
    found = client(uri).get_experiment_by_name(experiment)
    (run,) = client(uri).search_runs([found.experiment_id])
    return run


@pytest.mark.parametrize(
    ("key", "cleaned"),
    [
        ("loss", "loss"),
        ("top@1=2", "top_1_2"),
        ("a/b c:d.e-f", "a/b c:d.e-f"),
        ("/a//b/", "a/b"),
        ("a/../b", "b"),
        ("../b", "_/b"),
        ("", "_"),
        (".", "_"),
        ("größe", "größe"),
    ],
)
def test_names_are_cleaned(key: str, cleaned: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    assert clean_key(key) == cleaned
    _validate_metric_name(cleaned)


def test_a_run_has_its_times_its_tags_and_its_experiment(uri: str, tmp_path: Path) -> None:
    result = trainer([MLflowLoggerCallback(uri, tags={"team": "red"})], tmp_path, lr=0.1).fit()
    run = only_run(uri, "climbs")
    assert run.info.status == "FINISHED"
    assert run.info.end_time >= run.info.start_time
    assert run.data.tags["team"] == "red"
    assert run.data.tags["trial_name"] == run.info.run_name
    assert run.data.tags["paceline.path"] == result.path
    assert run.data.params["train_loop_config/lr"] == "0.1"
    history = client(uri).get_metric_history(run.info.run_id, "height")
    assert [(point.step, point.value) for point in history] == [(index, 10.0 * index) for index in range(1, ROWS + 1)]
    seconds = list(result.metrics_dataframe["timestamp"])
    assert [point.timestamp // 1000 for point in history] == seconds


def test_the_environment_names_the_experiment(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from outside")
    tracker = MLflowTracker()
    tracker.close(tracker.open(tracked_run(), None), "finished")
    assert only_run(uri, "from outside").info.run_name == "climb_4913f_00000"


def test_the_step_is_that_of_the_user_if_there_is_one(uri: str) -> None:
    tracker = MLflowTracker(uri)
    run_id = tracker.open(tracked_run(), None)
    tracker.send(run_id, [row(0, timesteps_total=400), row(1, timesteps_total=800)])
    points = client(uri).get_metric_history(run_id, "height")
    assert [point.step for point in points] == [400, 800]
    attempts = client(uri).get_metric_history(run_id, "paceline/attempt")
    assert [point.step for point in attempts] == [1, 2]


def test_a_changed_parameter_becomes_a_tag_of_its_attempt(uri: str) -> None:
    tracker = MLflowTracker(uri)
    run_id = tracker.open(tracked_run(), None)
    tracker.change_config(run_id, {"speed": 7, "model": {"depth": 3}, "extra": "x" * 7000}, attempt=2)
    data = client(uri).get_run(run_id).data
    assert data.params["speed"] == "0"
    assert data.tags["config.attempt_2.speed"] == "7"
    assert "config.attempt_2.model/depth" not in data.tags
    assert len(data.params["extra"]) == 6000


def test_trials_of_a_search_have_the_tags_of_their_group(uri: str, tmp_path: Path) -> None:
    callback = MLflowLoggerCallback(uri, experiment_name="all searches")
    tune.Tuner(
        report_speed,
        param_space={"speed": tune.grid_search([1, 2])},
        run_config=RunConfig(name="first search", storage_path=str(tmp_path), callbacks=[callback], verbose=0),
    ).fit()
    found = client(uri).get_experiment_by_name("all searches")
    query = "tags.`paceline.search` = 'first search'"
    runs = client(uri).search_runs([found.experiment_id], query)
    assert sorted(run.data.params["speed"] for run in runs) == ["1", "2"]
    assert len({run.data.tags["paceline.search_id"] for run in runs}) == 1


def report_speed(config: Mapping[str, Any]) -> None:
    train.report({"height": config["speed"]})


def test_artifacts_are_saved_at_the_end(uri: str, tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    client(uri).create_experiment("with files", artifact_location=artifacts.as_uri())
    trainer([MLflowLoggerCallback(uri, experiment_name="with files", save_artifact=True)], tmp_path).fit()
    assert [path.name for path in artifacts.glob("**/result.json")] == ["result.json"]


def test_a_run_that_was_deleted_is_gone_and_is_made_anew_by_a_restore(uri: str) -> None:
    tracker = MLflowTracker(uri)
    run_id = tracker.open(tracked_run(), None)
    client(uri).delete_run(run_id)
    with pytest.raises(RunGoneError):
        tracker.send(run_id, [row(0)])
    assert tracker.open(tracked_run(), run_id) != run_id


def test_a_deleted_experiment_is_rejected(uri: str) -> None:
    client(uri).delete_experiment(client(uri).create_experiment("deleted"))
    with pytest.raises(RejectedError, match="'deleted' was deleted"):
        MLflowTracker(uri, experiment_name="deleted").open(tracked_run(), None)


def test_a_server_that_is_not_there_is_noticed_at_once() -> None:
    with pytest.raises(ConnectionError):
        MLflowTracker("http://127.0.0.1:1").open(tracked_run(), None)


def test_a_password_in_the_address_is_not_shown() -> None:
    assert MLflowTracker("http://me:secret@host:5000").label == "MLflow at http://host:5000"


@pytest.mark.parametrize("address", ["sqlite:/mlflow.db", "bogus://x"])
def test_an_address_that_mlflow_does_not_understand_is_rejected(address: str) -> None:
    with pytest.raises(RejectedError, match="MLflow does not understand this address"):
        MLflowTracker(address).open(tracked_run(), None)
