"""Rows for loggers, and what other tools read from the files of a trial."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboardX.crc32c import crc32c as reference_crc
from tensorboardX.proto.event_pb2 import Event

from paceline.run.callbacks import RowLogger
from paceline.run.spec import Trial

LoggerMaker = Callable[[type[RowLogger]], RowLogger]


def make_row(iteration: int, **metrics: Any) -> dict[str, Any]:
    """A row as runs make it, with the keys that matter here."""
    return {
        **metrics,
        "training_iteration": iteration,
        "timestamp": 1_700_000_000 + iteration,
        "time_total_s": iteration / 2,
        "pid": 1,
        "config": {"train_loop_config": {"lr": 0.1}},
    }


def log(logger: RowLogger, trial: Trial, rows: list[dict[str, Any]]) -> None:
    logger.log_rows(trial, rows)
    logger.flush()


def read_json(trial: Trial) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(trial.local_path, "result.json").read_text().splitlines()]


def read_csv(trial: Trial) -> list[dict[str, str]]:
    with Path(trial.local_path, "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_events(trial: Trial) -> list[Any]:
    """All events of the trial's event files, every checksum verified by another implementation."""
    return [event for path in sorted(Path(trial.local_path).glob("events.*")) for event in decode(path.read_bytes())]


def decode(data: bytes) -> list[Any]:
    def masked(part: bytes) -> int:
        crc: int = reference_crc(part)
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    events, position = [], 0
    while position < len(data):
        length, length_crc = struct.unpack_from("<QI", data, position)
        assert length_crc == masked(data[position : position + 8])
        payload = data[position + 12 : position + 12 + length]
        assert struct.unpack_from("<I", data, position + 12 + length) == (masked(payload),)
        events.append(Event.FromString(payload))
        position += 16 + length
    return events


def curves(events: list[Any]) -> dict[str, dict[int, float]]:
    """What TensorBoard shows: a session start drops the steps that it supersedes."""
    shown: dict[str, dict[int, float]] = {}
    for event in events:
        if event.HasField("session_log") and event.session_log.status == event.session_log.START:
            for curve in shown.values():
                for step in [step for step in curve if step >= event.step]:
                    del curve[step]
        for value in event.summary.value:
            shown.setdefault(value.tag, {})[event.step] = value.simple_value
    return shown
