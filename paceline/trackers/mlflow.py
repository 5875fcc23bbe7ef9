"""MLflow: a run for each run, in batches of up to 1,000 metrics.

Sending again changes nothing: a metric carries the time of its row, and MLflow's databases keep equal metrics once. A
tag says how many rows have arrived, so that after a crash most rows are not even sent twice.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.secrets import without_credentials
from paceline.trackers.callback import TrackerCallback
from paceline.trackers.mlflow_patience import be_impatient
from paceline.trackers.tracker import ATTEMPT_KEY, Outcome, RejectedError, RunGoneError, TrackedRow, TrackedRun, Tracker
from paceline.trackers.values import cut, flat_config

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

__all__ = ["MLflowLoggerCallback", "MLflowTracker"]

KEY_TAG = "paceline.run"
ROWS_TAG = "paceline.rows"
MOST_METRICS = 999
"""In one request, beside the tag that counts the rows."""
MOST_PARAMS = 100
LONGEST_REQUEST = 400_000
"""Characters of parameters in one request; MLflow takes a megabyte, and other scripts take up to 6 bytes each."""
LONGEST_KEY, LONGEST_PARAM, LONGEST_TAG = 250, 6000, 5000
PROBE_S = 10.0
"""How long a server may take to accept a connection."""

_ODD = re.compile(r"[^/\w.\- :]")
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_REJECTIONS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE"})


class MLflowTracker(Tracker):
    """Sends runs to a tracking server, or to a database that MLflow opens itself."""

    name: ClassVar[str] = "mlflow"

    def __init__(
        self,
        tracking_uri: str | None = None,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
    ) -> None:
        self._tracking_uri = tracking_uri
        self._registry_uri = registry_uri
        self._experiment_name = experiment_name
        self._tags = dict(tags or {})
        self._token = tracking_token
        self._save_artifact = save_artifact
        self._client: MlflowClient | None = None
        self._experiments: dict[str, str] = {}
        self._directories: dict[str, str] = {}
        """What each open run would save as artifacts."""

    @property
    def label(self) -> str:
        uri = self._tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        return f"MLflow at {without_credentials(str(uri))}" if uri else "MLflow"

    def prepare(self) -> None:
        self._made_client()

    def open(self, run: TrackedRun, resume_id: str | None) -> str:
        client = self._connected()
        with _rejections(client):
            found = _run_of_id(client, resume_id) if resume_id else None
            if found is None and run.may_exist:
                found = self._run_of_key(client, run)
            if found is None:
                run_id = self._create(client, run)
                known: dict[str, str] = {}
            else:
                run_id, known = found.info.run_id, found.data.params
                client.update_run(run_id, status="RUNNING")
            self._directories[run_id] = run.path
            _log_params(client, run_id, run.config, known, run.attempt)
        return run_id

    def send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        from mlflow.entities import RunTag

        client = self._connected()
        with _rejections(client, run_id):
            for metrics, arrived in _requests(rows):
                tags = [] if arrived is None else [RunTag(ROWS_TAG, str(arrived))]
                client.log_batch(run_id, metrics=metrics, tags=tags)

    def close(self, run_id: str, outcome: Outcome) -> None:
        client = self._connected()
        directory = self._directories.get(run_id)
        with _rejections(client, run_id):
            if self._save_artifact and directory is not None:
                client.log_artifacts(run_id, directory)
            client.set_terminated(run_id, status=_STATUS[outcome])
        self._directories.pop(run_id, None)

    def received(self, run_id: str) -> int | None:
        client = self._connected()
        with _rejections(client, run_id):
            return int(client.get_run(run_id).data.tags.get(ROWS_TAG, 0))

    def change_config(self, run_id: str, config: dict[str, Any], attempt: int) -> None:
        client = self._connected()
        with _rejections(client, run_id):
            _log_params(client, run_id, config, client.get_run(run_id).data.params, attempt)

    def _connected(self) -> MlflowClient:
        """The client, if the server answers at all."""
        client = self._made_client()
        be_impatient()
        check_reachable(client.tracking_uri)
        return client

    def _made_client(self) -> MlflowClient:
        if self._client is None:
            with warnings.catch_warnings():
                # In notebooks, about progress bars, which are not used here.
                warnings.filterwarnings("ignore", "IProgress not found")
                import mlflow

            if self._token is not None:
                os.environ["MLFLOW_TRACKING_TOKEN"] = self._token  # where MLflow looks for it
            uri = str(self._tracking_uri or mlflow.get_tracking_uri())
            try:
                self._client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=self._registry_uri)
            except Exception as error:
                if _is_bad_uri(error):
                    raise RejectedError(
                        f"MLflow does not understand this address ({str(error).splitlines()[0].strip()}). Give one "
                        "such as http://host:5000, sqlite:///mlflow.db or a directory."
                    ) from error
                raise
        return self._client

    def _run_of_key(self, client: MlflowClient, run: TrackedRun) -> Run | None:
        """The run that a driver made, which then died before it could remember the id."""
        experiment = self._experiment(client, run)
        found = client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{run.key}'", max_results=1)
        return found[0] if found else None

    def _create(self, client: MlflowClient, run: TrackedRun) -> str:
        tags = {KEY_TAG: run.key, "trial_name": run.name, "paceline.path": run.path}
        if run.is_trial:
            tags |= {"paceline.search": run.experiment_name, "paceline.search_id": run.experiment_id}
        tags |= {clean_key(str(name)): cut(str(value), LONGEST_TAG) for name, value in self._tags.items()}
        created = client.create_run(
            self._experiment(client, run), start_time=int(run.started * 1000), tags=tags, run_name=run.name
        )
        return str(created.info.run_id)

    def _experiment(self, client: MlflowClient, run: TrackedRun) -> str:
        name = self._experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.experiment_name
        if name not in self._experiments:
            self._experiments[name] = experiment_id(client, name)
        return self._experiments[name]


class MLflowLoggerCallback(TrackerCallback):
    """Sends each run, or each trial of a search, to MLflow: configuration, rows, outcome.

    Without `tracking_uri`, MLflow decides: MLFLOW_TRACKING_URI, or a database in the working directory. Without
    `experiment_name`, the experiment is called as MLFLOW_EXPERIMENT_NAME says, or as the run is. `save_artifact` adds
    the run's directory at the end.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
    ) -> None:
        super().__init__(
            MLflowTracker(tracking_uri, registry_uri, experiment_name, tags, tracking_token, save_artifact)
        )


def clean_key(key: str) -> str:
    """The name of a metric, parameter or tag as MLflow accepts it."""
    cleaned = posixpath.normpath(_ODD.sub("_", key)).lstrip("/")
    if cleaned.startswith(".."):
        cleaned = cleaned.replace("..", "_")
    return cut(cleaned, LONGEST_KEY) if cleaned not in ("", ".") else "_"


def experiment_id(client: MlflowClient, name: str) -> str:
    """The id of the experiment of a name, which is created if there is none."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException as error:  # another process was faster
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        raise RejectedError(f"the experiment {name!r} was deleted. Restore it, or choose another experiment_name.")
    return str(found.experiment_id)


def _is_bad_uri(error: Exception) -> bool:
    """SQLAlchemy cannot parse it, or MLflow knows no such scheme."""
    return type(error).__name__ == "ArgumentError" or getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE"


def check_reachable(uri: str) -> None:
    """Raise if a server does not answer at all; any answer will do."""
    if uri.startswith(("http://", "https://")):
        import requests

        try:
            requests.head(f"{uri.rstrip('/')}/health", timeout=PROBE_S, allow_redirects=False)
        except requests.exceptions.SSLError:
            return  # somebody is there, and MLflow knows whom to trust
        except requests.exceptions.Timeout as error:
            raise TimeoutError(f"{without_credentials(uri)} does not answer within {PROBE_S:.0f} s") from error
        except requests.exceptions.RequestException as error:
            raise ConnectionError(f"{without_credentials(uri)} cannot be reached") from error


def _requests(rows: Sequence[TrackedRow]) -> Iterator[tuple[list[Metric], int | None]]:
    """The metrics of each request; and how many rows have arrived with it, if it completes a row."""
    metrics: list[Metric] = []
    arrived = None
    for row in rows:
        of_row = _metrics(row)
        if metrics and len(metrics) + len(of_row) > MOST_METRICS:
            yield metrics, arrived
            metrics = []
        while len(of_row) > MOST_METRICS:
            yield of_row[:MOST_METRICS], None
            of_row = of_row[MOST_METRICS:]
        metrics += of_row
        arrived = row.ordinal + 1
    if metrics:
        yield metrics, arrived


def _metrics(row: TrackedRow) -> list[Metric]:
    from mlflow.entities import Metric

    time_ms, step = int(row.time * 1000), row.step
    values: dict[str, float] = {}
    for name, value in row.numbers().items():
        key = clean_key(name)
        while key in values:  # two names that differ in odd characters only
            key = f"{cut(key, LONGEST_KEY - 1)}_"
        values[key] = float(value)
    metrics = [Metric(key, value, time_ms, step) for key, value in values.items()]
    return [*metrics, Metric(ATTEMPT_KEY, float(row.attempt), time_ms, row.index)]


def _log_params(
    client: MlflowClient, run_id: str, config: Mapping[str, Any], known: Mapping[str, str], attempt: int
) -> None:
    """Add what is new. MLflow never changes a parameter: another value becomes a tag that names the attempt."""
    from mlflow.entities import Param, RunTag

    params = {clean_key(key): cut(str(value), LONGEST_PARAM) for key, value in flat_config(config).items()}
    new = [(key, value) for key, value in params.items() if key not in known]
    for chunk in _chunks(new):
        client.log_batch(run_id, params=[Param(key, value) for key, value in chunk])
    changed = [
        (clean_key(f"config.attempt_{attempt}.{key}"), cut(value, LONGEST_TAG))
        for key, value in params.items()
        if key in known and known[key] != value
    ]
    for chunk in _chunks(changed):
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in chunk])


def _chunks(pairs: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    chunk: list[tuple[str, str]] = []
    size = 0
    for key, value in pairs:
        length = len(key) + (len(value) if value.isascii() else 6 * len(value))
        if chunk and (len(chunk) >= MOST_PARAMS or size + length > LONGEST_REQUEST):
            yield chunk
            chunk, size = [], 0
        chunk.append((key, value))
        size += length
    if chunk:
        yield chunk


def _run_of_id(client: MlflowClient, run_id: str) -> Run | None:
    """None if somebody has deleted it."""
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return found if found.info.lifecycle_stage == "active" else None


@contextlib.contextmanager
def _rejections(client: MlflowClient, run_id: str | None = None) -> Iterator[None]:
    """Tell what MLflow will never take from what it could not take now."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in _REJECTIONS:
            check_reachable(client.tracking_uri)  # which says it in fewer words than MLflow does
            raise
        kind = RejectedError if run_id is None or _run_of_id(client, run_id) is not None else RunGoneError
        raise kind(str(error).splitlines()[0]) from error
