"""What users hand to report(), and where they call it from, in real workers."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
from paceline.air.errors import (
    CheckpointError,
    MetricError,
    TrainingFailedError,
)
from paceline.testing.invariants import check_run, journal_records
from paceline.testing.processes import Driver, Marks
from paceline.testing.scripts import Action
from paceline.train import DataParallelTrainer
from tests.faults.cases import mostly_slow
from tests.faults.laboratory import Laboratory
from tests.ordinary import PREFIX

pytestmark = pytest.mark.usefixtures("fault_engine")

NAN, INF = math.nan, math.inf


BAD_METRICS: dict[str, tuple[Callable[[], Any], str]] = {
    "not a dict": (lambda: [1, 2], "dict"),
    "a number": (lambda: 3.0, "dict"),
    "integer key": (lambda: {1: 2}, "1"),
    "object": (lambda: {"loss": object()}, "loss"),
    "nested object": (lambda: {"a": {"b": object()}}, "a/b"),
    "a million keys": (lambda: {f"k{number}": number for number in range(1_000_000)}, "1,000,000 keys; the limit is"),
    "100 MB": (lambda: {"text": "x" * 100_000_000}, "limit of 1,000,000 bytes: 100,000,00"),
    "array": (lambda: {"loss": __import__("numpy").zeros(3)}, "loss"),
    "set": (lambda: {"loss": {1, 2}}, "loss"),
    "function": (lambda: {"loss": len}, "loss"),
}


@pytest.mark.parametrize("kind", mostly_slow(BAD_METRICS, everyday=["not a dict", "nested object", "100 MB"]))
def test_bad_metrics_raise_at_the_users_line(lab: Laboratory, kind: str) -> None:
    """F5, F7"""
    make, named = BAD_METRICS[kind]

    def loop(config: dict[str, Any]) -> None:
        if session.get_world_rank() == 0:
            offending_line(config)
        Marks(config["marks"]).pass_gate("never")

    def offending_line(config: dict[str, Any]) -> None:
        session.report(config["make"]())

    error = lab.failure_of(loop, config={"make": make})
    cause = error.root_cause
    assert cause is not None
    assert (cause.rank, cause.kind) == (0, "exception")
    assert isinstance(error.__cause__, MetricError)
    assert named in str(error.__cause__)
    assert "offending_line" in cause.traceback


class Colour(enum.Enum):
    RED = "red"


def test_values_are_converted_to_plain_ones(lab: Laboratory) -> None:
    """F6."""

    def loop(config: dict[str, Any]) -> None:
        import numpy as np

        metrics = {
            "float32": np.float32(0.5),
            "int64": np.int64(7),
            "bool_": np.bool_(True),
            "zero_d": np.array(2.5),
            "one_element": np.array([4]),
            **config["values"],
        }
        try:
            import torch

            metrics |= {
                "tensor": torch.tensor(1.5),
                "bfloat16": torch.tensor(0.5, dtype=torch.bfloat16),
                "integer_tensor": torch.tensor([3]),
            }
        except ImportError:
            metrics |= {"tensor": 1.5, "bfloat16": 0.5, "integer_tensor": 3}
        session.report(metrics)

    values = {
        "decimal": decimal.Decimal("0.25"),
        "date": datetime.date(2024, 5, 6),
        "moment": datetime.datetime(2024, 5, 6, 7, 8, 9),
        "path": Path("/a/b"),
        "colour": Colour.RED,
        "true": True,
        "none": None,
        "nan": NAN,
        "infinite": -INF,
        "tuple": (1, 2.5, "three"),
        "deep": {"er": {"est": 1}},
        "big": 2**62,
        "text": "äöü ∑ \u0000 \n end",
    }
    expected = {
        "float32": 0.5,
        "int64": 7,
        "bool_": True,
        "zero_d": 2.5,
        "one_element": 4,
        "tensor": 1.5,
        "bfloat16": 0.5,
        "integer_tensor": 3,
        "decimal": 0.25,
        "date": "2024-05-06",
        "moment": "2024-05-06T07:08:09",
        "path": "/a/b",
        "colour": "red",
        "true": True,
        "none": None,
        "infinite": -INF,
        "tuple": [1, 2.5, "three"],
        "deep": {"er": {"est": 1}},
        "big": 2**62,
        "text": "äöü ∑ \u0000 \n end",
    }
    result = lab.trainer(loop, workers=1, config={"values": values}).fit()
    check_run(result.path, result=result, iterations=1)
    assert result.metrics is not None
    found = {key: result.metrics[key] for key in expected}
    assert found == expected
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in expected.items()}
    assert math.isnan(result.metrics["nan"])
    frame = result.metrics_dataframe
    assert frame["deep/er/est"].tolist() == [1]
    assert frame["infinite"].tolist() == [-INF]


def _save_missing(place: Path) -> Path:
    return place / "nowhere"


def _save_file(place: Path) -> Path:
    (place / "file").write_text("not a directory")
    return place / "file"


def _save_dangling_link(place: Path) -> Path:
    (place / "d").mkdir()
    (place / "d" / "link").symlink_to(place / "nowhere")
    return place / "d"


def _save_pipe(place: Path) -> Path:
    (place / "d").mkdir()
    os.mkfifo(place / "d" / "pipe")
    return place / "d"


def _save_trial_dir(place: Path) -> Path:
    return Path(str(session.get_trial_dir()))


def _save_unreadable(place: Path) -> Path:
    (place / "d").mkdir()
    (place / "d" / "file").write_text("secret")
    (place / "d" / "file").chmod(0)
    return place / "d"


BAD_DIRECTORIES = [_save_missing, _save_file, _save_dangling_link, _save_pipe, _save_trial_dir]


@pytest.mark.parametrize("make", mostly_slow(BAD_DIRECTORIES, everyday=[_save_dangling_link, _save_trial_dir]))
def test_directories_that_cannot_be_a_checkpoint_are_rejected(lab: Laboratory, make: Callable[[Path], Path]) -> None:
    """F8."""

    def loop(config: dict[str, Any]) -> None:
        session.report({"iteration": 1}, checkpoint=Checkpoint.from_dict({"iteration": 1}))
        place = Path.cwd() / "place"
        place.mkdir()
        session.report({"iteration": 2}, checkpoint=Checkpoint.from_directory(str(make(place))))

    error = lab.failure_of(loop, workers=1)
    assert isinstance(error.__cause__, CheckpointError)
    assert error.result is not None
    assert error.result.checkpoint is not None
    assert error.result.checkpoint.to_dict()["iteration"] == 1


def test_a_checkpoint_that_may_not_be_read_is_rejected(lab: Laboratory) -> None:
    """F8; root may read everything, so the driver gives that up."""
    program = lab.root / "program.py"
    program.write_text(
        "import sys\n"
        "from tests.faults.test_bad_reports import fit_with_unreadable_directory\n"
        "fit_with_unreadable_directory(*sys.argv[1:])\n"
    )
    driver = Driver(
        [str(program), str(lab.storage), str(lab.marks.directory)], output=lab.root / "driver.txt", prefix=PREFIX
    )
    with driver:
        assert driver.wait() == 0, driver.text()
    (outcome,) = lab.marks.read("outcome")
    assert outcome["cause"] == "CheckpointError"
    assert "d/file" in outcome["text"]
    assert outcome["kept"] == 1
    check_run(lab.trial_dir)


def fit_with_unreadable_directory(storage: str, marks: str) -> None:
    def loop() -> None:
        session.report({"iteration": 1}, checkpoint=Checkpoint.from_dict({"iteration": 1}))
        place = Path.cwd() / "place"
        place.mkdir()
        session.report({"iteration": 2}, checkpoint=Checkpoint.from_directory(str(_save_unreadable(place))))

    run_config = RunConfig(name="experiment", storage_path=storage, verbose=0)
    trainer = DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=run_config)
    result = trainer.fit(raise_on_error=False)
    assert result.error is not None
    assert result.checkpoint is not None
    cause = result.error.__cause__
    kept = result.checkpoint.to_dict()["iteration"]
    Marks(marks).say("outcome", cause=type(cause).__name__, text=str(cause), kept=kept)


def test_the_users_keys_win_over_those_that_are_filled_in(lab: Laboratory) -> None:
    """F5: reserved keys are not rejected, and the run's own counting does not suffer."""

    def loop() -> None:
        for step in (1, 2):
            session.report({"training_iteration": step * 100, "time_total_s": -1.0, "iteration": step})

    result = lab.trainer(loop, workers=1).fit()
    assert list(result.metrics_dataframe["training_iteration"]) == [100, 200]
    assert list(result.metrics_dataframe["time_total_s"]) == [-1.0, -1.0]
    assert [record["index"] for record in journal_records(lab.trial_dir) if record["kind"] == "row"] == [1, 2]


def test_content_is_captured_before_report_returns(lab: Laboratory) -> None:
    """F8: One directory again and again, inside the run's own directory; removed at the end; empty in between."""

    def loop() -> None:
        import shutil

        place = Path.cwd() / "mine"
        for iteration in range(1, 6):
            place.mkdir(exist_ok=True)
            if iteration != 4:
                (place / "value").write_text(str(iteration))
            session.report({"iteration": iteration}, checkpoint=Checkpoint.from_directory(str(place)))
            (place / "value").write_text("overwritten")
            if iteration == 3:
                shutil.rmtree(place)
        shutil.rmtree(place)

    result = lab.trainer(loop, workers=1).fit()
    check_run(result.path, result=result, iterations=5)
    content = []
    for checkpoint, _ in result.best_checkpoints:
        with checkpoint.as_directory() as directory:
            file = Path(directory) / "value"
            content.append(file.read_text() if file.exists() else None)
    assert content == ["1", "2", "3", None, "5"]


def test_report_outside_a_session_warns() -> None:
    with pytest.warns(UserWarning, match="report"):
        session.report({"iteration": 1})


def test_report_from_a_thread_counts(lab: Laboratory) -> None:
    """F12."""

    def loop() -> None:

        for iteration in (1, 2):
            thread = threading.Thread(target=session.report, args=({"iteration": iteration},))
            thread.start()
            thread.join()

    result = lab.trainer(loop).fit()
    check_run(result.path, result=result, iterations=2)


def test_report_from_a_child_process_is_rejected(lab: Laboratory) -> None:
    """F12: A forked child (as a DataLoader has) is told its pid; the run itself goes on."""

    def loop(config: dict[str, Any]) -> None:
        session.report({"iteration": 1})
        child = os.fork()
        if child == 0:
            try:
                session.report({"iteration": 99})
            except Exception as error:
                Marks(config["marks"]).say("refused", error=type(error).__name__, text=str(error), pid=os.getpid())
            os._exit(0)
        os.waitpid(child, 0)
        session.report({"iteration": 2})

    result = lab.trainer(loop, workers=1).fit()
    check_run(result.path, result=result, iterations=2)
    (refusal,) = lab.marks.read("refused")
    assert refusal["error"] == "SessionMisuseError"
    assert str(refusal["pid"]) in refusal["text"]


def test_report_after_the_function_returned_is_rejected(lab: Laboratory) -> None:
    """F12."""

    def loop(config: dict[str, Any]) -> None:
        import atexit

        marks = Marks(config["marks"])

        def late() -> None:
            try:
                session.report({"iteration": 99})
            except Exception as error:
                marks.say("refused", error=type(error).__name__)

        session.report({"iteration": 1})
        # Exit handlers run when everything has been delivered: nothing can be later.
        atexit.register(lambda: (thread := threading.Thread(target=late), thread.start(), thread.join()))

    result = lab.trainer(loop, workers=1).fit()
    check_run(result.path, result=result, iterations=1)
    assert [mark["error"] for mark in lab.marks.read("refused")] == ["SessionMisuseError"]


def test_empty_report_is_a_row(lab: Laboratory) -> None:
    """F14."""
    result = lab.trainer(lambda: session.report({})).fit()
    check_run(result.path, result=result, iterations=1)


def test_rank_zero_is_the_row_and_the_others_are_kept_beside_it(lab: Laboratory) -> None:
    """F14."""

    def loop() -> None:
        rank = session.get_world_rank()
        for iteration in (1, 2):
            session.report(
                {"iteration": iteration, "rank": rank, f"only_{rank}": rank * 10},
                checkpoint=Checkpoint.from_dict({"rank": rank}),
            )

    result = lab.trainer(loop).fit()
    check_run(result.path, result=result, iterations=2)
    assert result.metrics is not None
    assert result.metrics["rank"] == 0
    assert "only_1" not in result.metrics
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["rank"] == 0
    assert {rank: metrics["rank"] for rank, metrics in result.rank_metrics.items()} == {0: 0, 1: 1}
    frame = result.rank_dataframe
    assert len(frame) == 4


def test_an_error_in_user_code_is_retried_as_often_as_asked_for(lab: Laboratory) -> None:
    error = lab.fail(
        lab.plan(Action("raise", 2, 0, "same again", times=9), failures={"max_failures": 1}),
        {"rank": 0, "kind": "exception"},
        attempts=2,
    )
    assert isinstance(error.__cause__, ValueError)
    assert isinstance(error, TrainingFailedError)
