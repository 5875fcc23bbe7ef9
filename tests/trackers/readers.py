"""What services have of runs, read from their databases and files."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from paceline.testing.tracker_contract import ReadRow, ReadRun
from paceline.trackers.tracker import ATTEMPT_KEY
from paceline.trackers.values import flat_config
from tests.trackers import ledger

MLFLOW_OUTCOMES: dict[str, Any] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "interrupted"}
WANDB_OUTCOMES: dict[int, Any] = {0: "finished", 1: "failed", 255: "interrupted"}


def read_ledger(place: Path) -> list[ReadRun]:
    found = []
    for told in ledger.runs(place).values():
        config: dict[str, Any] = {}
        rows, outcome = [], None
        for each in told:
            if each["event"] in ("open", "config"):
                config |= {name: str(value) for name, value in flat_config(each["config"]).items()}
            elif each["event"] == "row":
                rows.append(ReadRow(each["attempt"], each["step"], each["values"]))
            outcome = each.get("outcome") if each["event"] in ("open", "close") else outcome
        found.append(ReadRun(told[0]["name"], rows, config, outcome))
    return found


def read_mlflow(uri: str) -> list[ReadRun]:
    """Everything that MLflow has, oldest run first. Rows are put together by step and time."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    found = []
    for run in client.search_runs(experiments, order_by=["attributes.start_time ASC"], max_results=1000):
        points: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
        copies = 0
        for name in run.data.metrics:
            for point in client.get_metric_history(run.info.run_id, name):
                values = points[point.timestamp, point.step]
                copies += name in values
                values[name] = point.value
        assert copies == 0, f"{copies} values came twice"
        rows = [ReadRow(int(values[ATTEMPT_KEY]), step, values) for (_, step), values in sorted(points.items())]
        config = {**run.data.params}
        found.append(ReadRun(run.info.run_name, rows, config, MLFLOW_OUTCOMES.get(run.info.status)))
    return found


def read_wandb(place: Path) -> list[ReadRun]:
    """The files of offline runs. Several files may belong to one run."""
    from paceline.trackers.wandb_file import messages_in

    found: dict[str, ReadRun] = {}
    for path in sorted(place.glob("**/wandb/offline-run-*/*.wandb")):
        name, outcome, config, rows = "", None, dict[str, str](), []
        for kind, message in messages_in(path):
            if kind in ("run", "config"):
                name = message.display_name if kind == "run" else name
                updates = message.config.update if kind == "run" else message.update
                nested = {"/".join(each.nested_key) or each.key: json.loads(each.value_json) for each in updates}
                config |= {key: str(value) for key, value in flat_config(nested).items()}
            elif kind == "exit":
                outcome = WANDB_OUTCOMES[message.exit_code]
            elif kind == "history":
                values = {"/".join(each.nested_key) or each.key: json.loads(each.value_json) for each in message.item}
                rows.append(ReadRow(values[ATTEMPT_KEY], values["training_iteration"], values))
        run_id = path.stem
        before = found.get(run_id, ReadRun(name, []))
        found[run_id] = ReadRun(name or before.name, [*before.rows, *rows], {**before.config, **config}, outcome)
    return [*found.values()]


def read_comet(place: Path) -> list[ReadRun]:
    """The archives of offline experiments. Several archives may belong to one experiment."""
    found: dict[str, ReadRun] = {}
    for path in sorted(place.glob("*.zip"), key=lambda path: path.stat().st_mtime_ns):
        with zipfile.ZipFile(path) as archive:
            if "messages.json" not in archive.namelist():  # of a driver that was killed
                continue
            messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
            key = json.loads(archive.read("experiment.json"))["offline_id"]
        name, outcome, config = "", None, dict[str, str]()
        rows: list[ReadRow] = []
        values: dict[str, float] = {}
        for message in messages:
            payload = message["payload"]
            if message["type"] == "log_other" and payload["key"] == "Name":
                name = payload["value"]
            elif message["type"] == "log_other" and payload["key"] == "outcome":
                outcome = payload["value"]
            elif message["type"] == "parameter_msg" and "param" in payload:
                config[payload["param"]["paramName"]] = str(payload["param"]["paramValue"])
            elif message["type"] == "metric_msg":
                metric = payload["metric"]
                values[metric["metricName"]] = metric["metricValue"]
                if metric["metricName"] == ATTEMPT_KEY:  # the last of a row
                    rows.append(ReadRow(int(metric["metricValue"]), metric["step"], values))
                    values = {}
        before = found.get(key, ReadRun(name, []))
        found[key] = ReadRun(name or before.name, [*before.rows, *rows], {**before.config, **config}, outcome)
    return [*found.values()]
