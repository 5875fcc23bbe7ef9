"""The event files that TensorBoard reads."""

from __future__ import annotations

import math
import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from paceline.run.callbacks import CallbackList
from paceline.run.loggers import CSVLoggerCallback, JsonLoggerCallback, default_loggers
from paceline.run.spec import Trial
from paceline.run.tensorboard import TBXLoggerCallback
from tests.run.logged_rows import LoggerMaker, curves, log, make_row, read_events


class TestTensorBoard:
    def test_every_number_is_a_point_of_a_curve(self, make: LoggerMaker, trial: Trial) -> None:
        logger = make(TBXLoggerCallback)
        log(logger, trial, [make_row(i, loss=1 / i, eval={"acc": i}, text="no", flag=True) for i in (1, 2)])
        events = read_events(trial)
        assert events[0].file_version == "brain.Event:2"
        assert events[1].wall_time == 1_700_000_001
        assert curves(events) == {
            "paceline/loss": {1: 1.0, 2: 0.5},
            "paceline/eval/acc": {1: 1.0, 2: 2.0},
            "paceline/time_total_s": {1: 0.5, 2: 1.0},
        }

    def test_checksums_hold_for_random_events(self, make: LoggerMaker, trial: Trial) -> None:
        """More sets of names than there are templates, steps of every length, every kind of number."""
        random.seed(7)
        numbers = [0.0, -0.0, 1e30, 1e39, -1e300, 10**400, 1e-46, math.inf, -math.inf, math.nan, 2**40, -1, 0.1]
        rows = []
        for _ in range(600):
            step = random.choice([0, 1, 127, 128, 16383, 16384, 2**21, 2**31, 2**40])
            names = [f"metric_{n}" * random.choice([1, 20]) for n in range(random.randint(1, 4))]
            rows.append(make_row(step, **{name: random.choice(numbers) for name in names}))
        log(make(TBXLoggerCallback), trial, rows)
        events = read_events(trial)[1:]
        assert [event.step for event in events] == [row["training_iteration"] for row in rows]
        for event, row in zip(events, rows, strict=True):
            for value in event.summary.value:
                expected = as_float32(row[value.tag.removeprefix("paceline/")])
                assert value.simple_value == expected or (math.isnan(expected) and math.isnan(value.simple_value))

    def test_many_numbers_take_memory_in_proportion(self, make: LoggerMaker, trial: Trial) -> None:
        """What grows with the square of the numbers would take gigabytes for a wide row."""
        logger = make(TBXLoggerCallback)
        rows = [make_row(i, **{f"{'layer' * (n % 3)}_{n}": n / i for n in range(2_000)}) for i in (1, 2)]
        tracemalloc.start()
        log(logger, trial, rows)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20_000_000
        assert len(curves(read_events(trial))) == 2_001

    def test_a_row_without_numbers_writes_nothing(self, make: LoggerMaker, trial: Trial) -> None:
        log(make(TBXLoggerCallback), trial, [{"training_iteration": 1, "text": "x"}])
        assert len(read_events(trial)) == 1

    def test_rewound_steps_are_superseded(self, make: LoggerMaker, trial: Trial) -> None:
        logger = make(TBXLoggerCallback)
        log(logger, trial, [make_row(i, loss=i) for i in (1, 2, 3, 4)])
        assert logger.rewind(trial, 2) == 2
        log(logger, trial, [make_row(3, loss=30)])
        assert curves(read_events(trial))["paceline/loss"] == {1: 1, 2: 2, 3: 30}

    def test_metrics_of_a_validation_come_late(self, make: LoggerMaker, trial: Trial) -> None:
        """They supersede nothing, also if rows that come next do."""
        logger = make(TBXLoggerCallback)
        log(logger, trial, [make_row(i, loss=i) for i in (1, 2, 3)])
        logger.rewind(trial, 2)
        logger.log_validation(trial, {"training_iteration": 1, "validation": {"error": 0.5}})
        log(logger, trial, [make_row(3, loss=7)])
        events = read_events(trial)
        assert curves(events)["paceline/validation/error"] == {1: 0.5}
        assert [event.step for event in events if event.session_log.status] == [3]

    def test_another_driver_writes_the_surviving_history_again(self, make: LoggerMaker, trial: Trial) -> None:
        rows = [make_row(i, loss=i) for i in (1, 2, 3, 4)]
        first = make(TBXLoggerCallback)
        log(first, trial, rows)
        first.log_trial_end(trial)
        callbacks = CallbackList([], [make(TBXLoggerCallback)])
        callbacks.rewind(trial, 2, lambda start: rows[start:2])
        callbacks.log_rows(trial, [make_row(3, loss=30)])
        callbacks.flush()
        assert len(list(Path(trial.local_path).glob("events.*"))) == 2
        assert curves(read_events(trial))["paceline/loss"] == {1: 1, 2: 2, 3: 30}

    def test_tensorboardx_is_looked_for_but_not_imported(self) -> None:
        code = (
            "import sys; from paceline.run.loggers import default_loggers; print(len(default_loggers())); "
            "print([m for m in ('tensorboardX', 'numpy', 'pandas', 'rich', 'fsspec') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "3\n[]\n"

    def test_without_tensorboardx_there_are_two_defaults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert [type(logger) for logger in default_loggers()] == [JsonLoggerCallback, CSVLoggerCallback]


def as_float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except (OverflowError, struct.error):
        return math.inf if value > 0 else -math.inf
