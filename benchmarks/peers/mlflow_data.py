"""Fills a SQLite store of MLflow with the runs of view_workload.py. Arguments: the file, how many trials and rows.

MLflow makes the tables; the rows go straight into them, as its own functions would take hours. Runs in its own venv.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from benchmarks import view_workload as data


def add_run(database: sqlite3.Connection, run: dict[str, Any], params: dict[str, Any], values: Any) -> str:
    identifier = uuid.uuid4().hex
    began, over = run["began"], run["began"] + len(values) * data.SECONDS_PER_ROW
    insert(
        database, "runs", run_uuid=identifier, name=run["name"], source_type="LOCAL", source_name="", user_id="bench",
        entry_point_name="", status="FINISHED", start_time=int(began * 1000), end_time=int(over * 1000),
        source_version="", lifecycle_stage="active", artifact_uri=f"{run['artifacts']}/{identifier}/artifacts",
        experiment_id=run["experiment"],
    )  # fmt: skip
    insert(database, "tags", key="mlflow.runName", value=run["name"], run_uuid=identifier)
    for key, value in params.items():
        insert(database, "params", key=key, value=str(value), run_uuid=identifier)
    database.executemany(
        "INSERT INTO metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, 0, ?)",
        metric_rows(identifier, began, values),
    )
    for column, key in enumerate(data.METRICS):
        last = float(values[-1, column])
        insert(
            database, "latest_metrics", key=key, value=last, timestamp=int(over * 1000), step=len(values), is_nan=0,
            run_uuid=identifier,
        )  # fmt: skip
    return identifier


def metric_rows(identifier: str, began: float, values: Any) -> Iterator[tuple[str, float, int, int, str]]:
    for column, key in enumerate(data.METRICS):  # in the order of the table's key: quickest to insert
        for step, value in enumerate(values[:, column].tolist(), 1):
            yield key, value, int((began + step * data.SECONDS_PER_ROW) * 1000), step, identifier


def insert(database: sqlite3.Connection, table: str, **row: Any) -> None:
    names = ", ".join(row)
    database.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))


def main(file: Path, trials: int, rows: int) -> None:
    artifacts = str(file.parent / "artifacts")
    store = SqlAlchemyStore(f"sqlite:///{file}", artifacts)
    experiments = {name: store.create_experiment(name) for name in (data.SEARCH, data.LONG_RUN)}
    store.engine.dispose()
    database = sqlite3.connect(file)
    database.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;")
    with database:
        for number in range(trials):
            trial = data.trial(number)
            place = {"name": f"trial_{number:05d}", "began": trial.began, "artifacts": artifacts}
            add_run(database, {**place, "experiment": experiments[data.SEARCH]}, trial.params, trial.values)
        long = {"name": data.LONG_RUN, "began": data.BEGAN + 3600, "artifacts": artifacts}
        identifier = add_run(database, {**long, "experiment": experiments[data.LONG_RUN]}, {}, data.long_run(rows))
    database.close()
    out = {"experiments": experiments, "run": identifier, "bytes": file.stat().st_size}
    Path(os.environ["BENCH_OUT"]).write_text(json.dumps(out))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
