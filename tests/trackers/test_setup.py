"""setup_mlflow and setup_wandb, called by the user's function in workers and outside of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.air.errors import TrainingFailedError
from paceline.testing.tracker_contract import ReadRun
from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from tests.trackers.readers import read_wandb
from tests.trackers.services import WANDB_QUIET


@pytest.fixture
def uri(tmp_path: Path, make_database: Callable[[Path], str]) -> str:
    return make_database(tmp_path / "mlflow.db")


def fit(loop: Callable[..., None], storage: Path, config: Mapping[str, Any], **failures: Any) -> Any:
    return DataParallelTrainer(
        loop,
        train_loop_config=dict(config),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="climbs", storage_path=str(storage), failure_config=FailureConfig(**failures), verbose=0
        ),
    ).fit()


def with_mlflow(config: Mapping[str, Any]) -> None:
    from paceline.air.integrations.mlflow import setup_mlflow

    mlflow = setup_mlflow(
        dict(config), tracking_uri=config["uri"], create_experiment_if_not_exists=True, tags={"team": "red"}
    )
    rank = train.get_context().get_world_rank()
    mark = Path(config["mark"])
    mlflow.log_metric("height", 10.0, step=int(mark.exists()))
    with mlflow.start_run(nested=True) as nested:
        assert bool(nested) == (rank == 0)
    train.report({"active": bool(mlflow)})
    if rank == 0 and not mark.exists():
        mark.touch()
        raise RuntimeError("once")


def runs_of_mlflow(uri: str) -> list[Any]:
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("climbs")
    runs = client.search_runs([experiment.experiment_id])
    return [run for run in runs if "mlflow.parentRunId" not in run.data.tags]


def test_rank_0_has_a_run_of_mlflow_that_a_retry_continues(uri: str, tmp_path: Path) -> None:
    config = {"uri": uri, "mark": str(tmp_path / "mark"), "lr": 0.1, "password": "hidden"}
    result = fit(with_mlflow, tmp_path, config, max_failures=1)
    assert result.rank_metrics == {0: {"active": True}, 1: {"active": False}}
    (run,) = runs_of_mlflow(uri)
    assert run.info.status == "FINISHED"
    assert run.info.run_name.startswith("DataParallelTrainer_")
    assert run.data.params["lr"] == "0.1"
    assert run.data.params["password"] == "***"
    assert run.data.tags["team"] == "red"


def test_outside_of_a_run_mlflow_is_set_up_as_well(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    from paceline.air.integrations.mlflow import setup_mlflow

    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    with pytest.raises(ValueError, match=r"no experiment 'new'.*create_experiment_if_not_exists"):
        setup_mlflow({}, tracking_uri=uri, experiment_name="new")
    found = setup_mlflow({"lr": 0.1}, tracking_uri=uri, experiment_name="new", create_experiment_if_not_exists=True)
    try:
        assert found is mlflow
        assert mlflow.active_run() is not None
    finally:
        mlflow.end_run()
        mlflow.set_tracking_uri(None)


def with_wandb(config: Mapping[str, Any]) -> None:
    from paceline.air.integrations.wandb import setup_wandb

    run = setup_wandb(dict(config), project="climbs", dir=config["place"], settings=WANDB_QUIET)
    for index in range(1, 4):
        run.log({"height": 10.0 * index, "training_iteration": index, "paceline/attempt": 0})
    train.report({"disabled": run.disabled})
    if config["fails"] and train.get_context().get_world_rank() == 0:
        raise RuntimeError("for good")


@pytest.mark.parametrize("fails", [False, True])
def test_rank_0_has_a_run_of_wandb_and_others_a_disabled_one(fails: bool, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    place = tmp_path / "wandb files"
    place.mkdir()
    config = {"place": str(place), "lr": 0.1, "fails": fails}
    try:
        result = fit(with_wandb, tmp_path, config)
        assert result.rank_metrics == {0: {"disabled": False}, 1: {"disabled": True}}
    except TrainingFailedError:
        assert fails
    (found,) = read_wandb(place)
    check(found, "failed" if fails else "finished")


def check(found: ReadRun, outcome: str) -> None:
    assert [each.values["height"] for each in found.rows] == [10.0, 20.0, 30.0]
    assert found.config["lr"] == "0.1"
    assert found.outcome == outcome
    assert found.name.startswith("DataParallelTrainer_")
