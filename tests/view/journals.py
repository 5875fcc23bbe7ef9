"""Runs without training: journals written with the library's own records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.run.records import AttemptStarted, Header, Record, Row, Validated, ValidationFailed, ValidationRequested
from paceline.storage.journal import Journal

STARTED = 1_700_000_000.0


def header(name: str = "an experiment", trial_id: str = "a1b2c_00000", **settings: Any) -> Header:
    return Header(
        trainer="TorchTrainer",
        experiment_name=name,
        trial_id=trial_id,
        experiment_id="a1b2c3",
        experiment_tag="0",
        settings={"config": {}, "run_config": {"checkpoint_config": {}}, "scaling_config": {}, **settings},
        time=STARTED,
    )


def row(index: int, metrics: Mapping[str, Any], *, attempt: int = 0, rank: int = 0, **more: Any) -> Row:
    return Row(
        attempt=attempt,
        index=index,
        rank=rank,
        stamp=STARTED + index + 100 * attempt,
        elapsed=float(index),
        metrics=dict(metrics),
        **more,
    )


def attempt(number: int = 0, start_index: int = 0, start_time_s: float = 0.0) -> AttemptStarted:
    return AttemptStarted(
        attempt=number, start_index=start_index, start_time_s=start_time_s, time=STARTED + 100 * number
    )


def validated(attempt: int, index: int, metrics: Mapping[str, Any], number: int | None = None) -> Validated:
    """By default the number of the checkpoint is the index of its row."""
    number = index if number is None else number
    return Validated(attempt=attempt, index=index, number=number, time=STARTED, duration_s=2.0, metrics=dict(metrics))


def wanted(attempt: int, index: int) -> ValidationRequested:
    return ValidationRequested(attempt=attempt, index=index, number=index, time=STARTED)


def failed_validation(attempt: int, index: int, message: str) -> ValidationFailed:
    return ValidationFailed(attempt=attempt, index=index, number=index, time=STARTED, message=message)


def write(path: Path, records: Iterable[Record]) -> Path:
    """Append records to the journal of the run at `path`."""
    path.mkdir(parents=True, exist_ok=True)
    journal = Journal(path / "journal.jsonl")
    for record in records:
        journal.append(record, finite=False)
    journal.close()
    return path
