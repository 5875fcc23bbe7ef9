"""`setup_mlflow`: MLflow inside of a worker, with an active run for the user's own calls."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

from paceline.trackers.mlflow import LONGEST_PARAM, LONGEST_TAG, check_reachable, clean_key, experiment_id
from paceline.trackers.values import cut, flat_config
from paceline.trackers.worker import Place, at_end, split_config

__all__ = ["setup_mlflow"]

SETUP_TAG = "paceline.setup_of"


def setup_mlflow(
    config: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: Mapping[str, Any] | None = None,
    rank_zero_only: bool = True,
) -> Any:
    """Start an MLflow run in this worker, log `config` as its parameters, and return the module ``mlflow``.

    With `rank_zero_only`, the other ranks get an object that accepts every call and does nothing. After a retry, the
    same MLflow run is continued. The experiment is the one given, or MLFLOW_EXPERIMENT_NAME, or called as the run is;
    it must exist unless `create_experiment_if_not_exists` is set.
    """
    place = Place.here()
    if rank_zero_only and place.rank != 0:
        return NothingModule("mlflow")
    params, settings = split_config(config, "mlflow")
    import mlflow

    if tracking_token is not None:
        os.environ["MLFLOW_TRACKING_TOKEN"] = tracking_token
    if uri := tracking_uri or settings.get("tracking_uri"):
        mlflow.set_tracking_uri(uri)
    if registry_uri is not None:
        mlflow.set_registry_uri(registry_uri)
    experiment = _experiment(
        experiment_id or settings.get("experiment_id"),
        experiment_name or settings.get("experiment_name") or os.environ.get("MLFLOW_EXPERIMENT_NAME"),
        place,
        artifact_location,
        create_experiment_if_not_exists,
    )
    labels = {clean_key(str(key)): cut(str(value), LONGEST_TAG) for key, value in (tags or {}).items()}
    known = _start(mlflow, experiment, run_name or place.trial_name, labels, place)
    new = {clean_key(key): cut(str(value), LONGEST_PARAM) for key, value in flat_config(params).items()}
    mlflow.log_params({key: value for key, value in new.items() if key not in known})
    if place.key is not None:
        at_end(partial(_end, mlflow))
    return mlflow


def _end(mlflow: ModuleType, failed: bool) -> None:
    """End the run, unless the user did. A server that is gone must not keep the worker."""
    if mlflow.active_run() is not None:
        check_reachable(mlflow.get_tracking_uri())
        mlflow.end_run("FAILED" if failed else "FINISHED")


def _experiment(given_id: str | None, name: str | None, place: Place, artifacts: str | None, may_create: bool) -> str:
    """The id of the experiment to use."""
    import mlflow

    client = mlflow.MlflowClient()
    if given_id is not None:
        if client.get_experiment(given_id) is None:
            raise ValueError(
                f"experiment_id={given_id!r}: MLflow at {mlflow.get_tracking_uri()} has no such experiment."
            )
        return given_id
    name = name or place.experiment_name or "Default"
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    if not may_create and name != "Default":
        raise ValueError(
            f"MLflow at {mlflow.get_tracking_uri()} has no experiment {name!r}: pass "
            "create_experiment_if_not_exists=True, or the name of one that exists."
        )
    return (
        str(client.create_experiment(name, artifact_location=artifacts)) if artifacts else experiment_id(client, name)
    )


def _start(mlflow: ModuleType, experiment: str, name: str | None, tags: dict[str, str], place: Place) -> dict[str, str]:
    """Make a run the active one: that of an earlier attempt, or a new one. Returns the parameters that it has."""
    mlflow.end_run()
    if place.key is not None:
        query = f"tags.`{SETUP_TAG}` = '{place.key}'"
        found = mlflow.MlflowClient().search_runs([experiment], query, max_results=1)
        if found:
            mlflow.start_run(run_id=found[0].info.run_id, tags=tags or None)
            return dict(found[0].data.params)
        tags = {SETUP_TAG: place.key, **tags}
    mlflow.start_run(experiment_id=experiment, run_name=name, tags=tags or None)
    return {}


class NothingModule:
    """Stands in for a module: every attribute of it can be called, used in a `with` block, or asked for attributes."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> NothingModule:
        if name.startswith("__"):
            raise AttributeError(name)
        return NothingModule(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> NothingModule:
        return self

    def __enter__(self) -> NothingModule:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<{self.__name__}, which does nothing on this rank>"
