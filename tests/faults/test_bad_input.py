"""What users get wrong, seen from the outside: through fit() and report() in real workers (F1-F14)."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import os
import socket
import subprocess
import sys
import textwrap
import threading
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import (
    CheckpointError,
    ConfigError,
    MetricError,
    PacelineError,
    SerializationError,
    TrainingFailedError,
)
from paceline.testing.chaos import Driver, Marks
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.scripts import Action
from paceline.train import DataParallelTrainer
from tests.faults.laboratory import Laboratory


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True, 10**6])
def test_f1_impossible_numbers_of_workers(number: Any) -> None:
    with pytest.raises(ConfigError, match="num_workers"):
        ScalingConfig(num_workers=number)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("order", ["max", "min"])
@pytest.mark.parametrize(
    ("scores", "max_best", "min_best"),
    [
        pytest.param([NAN, 1.0, NAN, 3.0, 2.0, NAN], [2.0, 3.0], [2.0, 1.0], id="NaN sometimes"),
        pytest.param([1.0, INF, -INF, 2.0], [2.0, INF], [1.0, -INF], id="infinite"),
        pytest.param([None, 1.0, None, 3.0, 2.0, None], [2.0, 3.0], [2.0, 1.0], id="missing sometimes"),
    ],
)
def test_f2_f3_bad_scores_rank_worst_whichever_way(
    lab: Laboratory, order: str, scores: list[float | None], max_best: list[float], min_best: list[float]
) -> None:
    result = _with_scores(lab, scores, checkpoint_score_order=order).fit()
    check_run(result.path, result=result, iterations=len(scores), attempts=1)
    assert [row.get("score") for _, row in result.best_checkpoints] == (max_best if order == "max" else min_best)
    newest = result.checkpoint
    assert newest is not None
    assert newest.to_dict()["iteration"] == len(scores)


@pytest.mark.parametrize("order", ["max", "min"])
@pytest.mark.parametrize("score", [None, NAN])
def test_f2_f3_without_any_usable_score_the_newest_are_kept(lab: Laboratory, order: str, score: float | None) -> None:
    result = _with_scores(lab, [score] * 5, checkpoint_score_order=order).fit()
    check_run(result.path, result=result, iterations=5, attempts=1)
    assert [checkpoint.to_dict()["iteration"] for checkpoint, _ in result.best_checkpoints] == [4, 5]
    if score is None:
        assert sum("score" in warning for warning in result.warnings) == 1, "warned not once"


def test_f3_nested_score(lab: Laboratory) -> None:
    def loop() -> None:
        for iteration, value in enumerate([3.0, 1.0, 2.0], 1):
            session.report({"evaluation": {"loss": value}}, checkpoint=Checkpoint.from_dict({"iteration": iteration}))

    result = lab.trainer(
        loop,
        workers=1,
        checkpoint_config=CheckpointConfig(
            num_to_keep=1, checkpoint_score_attribute="evaluation/loss", checkpoint_score_order="min"
        ),
    ).fit()
    check_run(result.path, result=result, iterations=3)
    assert [checkpoint.to_dict()["iteration"] for checkpoint, _ in result.best_checkpoints] == [2]


def test_f3_score_that_is_no_number(lab: Laboratory) -> None:
    def loop() -> None:
        session.report({"score": "good"}, checkpoint=Checkpoint.from_dict({"iteration": 1}))

    error = lab.failure_of(loop, workers=1, checkpoint_config=CheckpointConfig(checkpoint_score_attribute="score"))
    assert isinstance(error.__cause__, TypeError)
    assert "score" in str(error.__cause__)
    assert "good" in str(error.__cause__)


def _with_scores(lab: Laboratory, scores: list[float | None], **settings: Any) -> DataParallelTrainer:
    def loop(config: dict[str, Any]) -> None:
        for iteration, score in enumerate(config["scores"], 1):
            metrics = {"iteration": iteration} | ({} if score is None else {"score": score})
            session.report(metrics, checkpoint=Checkpoint.from_dict({"iteration": iteration}))

    return lab.trainer(
        loop,
        workers=1,
        config={"scores": scores},
        checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score", **settings),
    )


class Holder:
    def __init__(self, held: object) -> None:
        self.held = held


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: {"a": {"b": threading.Lock()}}, r"\['a'\]\['b'\]"),
        (lambda: {"a": Holder(threading.Lock())}, r"\['a'\]\.held"),
        (lambda: {"files": [open(os.devnull, "w")]}, r"\['files'\]\[0\]"),  # noqa: SIM115
        (lambda: {"s": socket.socket()}, r"\['s'\]"),
        (lambda: {"g": (number for number in range(3))}, r"\['g'\]"),
    ],
    ids=["lock", "attribute", "file", "socket", "generator"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_f4_config_that_cannot_travel(lab: Laboratory, make: Callable[[], dict[str, Any]], path: str) -> None:
    def loop(config: dict[str, Any]) -> None:
        Marks(config["marks"]).say("started")

    config = make()
    try:
        with pytest.raises(SerializationError, match=path):
            lab.trainer(loop, config=config).fit()
    finally:
        for value in (config.get("s"), *config.get("files", ())):
            if value is not None:
                value.close()
    assert lab.marks.read("started") == []


def test_f4_function_that_cannot_travel_names_the_variable(lab: Laboratory) -> None:
    captured_lock = threading.Lock()

    def loop() -> None:
        with captured_lock:
            pass

    with pytest.raises(SerializationError, match="captured_lock"):
        lab.trainer(loop).fit()


BAD_METRICS: dict[str, tuple[Callable[[], Any], str]] = {
    "not a dict": (lambda: [1, 2], "dict"),
    "a number": (lambda: 3.0, "dict"),
    "integer key": (lambda: {1: 2}, "1"),
    "object": (lambda: {"loss": object()}, "loss"),
    "nested object": (lambda: {"a": {"b": object()}}, "a/b"),
    "a million keys": (lambda: {f"k{number}": number for number in range(1_000_000)}, "key"),
    "100 MB": (lambda: {"text": "x" * 100_000_000}, "1"),
    "array": (lambda: {"loss": __import__("numpy").zeros(3)}, "loss"),
    "set": (lambda: {"loss": {1, 2}}, "loss"),
    "function": (lambda: {"loss": len}, "loss"),
}


@pytest.mark.parametrize("kind", BAD_METRICS)
def test_f5_f7_metrics_that_are_refused_at_the_users_line(lab: Laboratory, kind: str) -> None:
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


def test_f6_values_that_are_converted(lab: Laboratory) -> None:
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


@pytest.mark.parametrize("make", [_save_missing, _save_file, _save_dangling_link, _save_pipe, _save_trial_dir])
def test_f8_directories_that_cannot_be_a_checkpoint(lab: Laboratory, make: Callable[[Path], Path]) -> None:
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


def test_f8_content_is_captured_before_report_returns(lab: Laboratory) -> None:
    """One directory again and again, inside the run's own directory; removed at the end; empty in between."""

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


def _corrupt(directory: Path) -> None:
    (directory / "nested" / "weights.bin").write_bytes(b"something else")


def _other_version(directory: Path) -> None:
    manifest = directory / "MANIFEST.json"
    manifest.write_text(
        manifest.read_text().replace('"format":1', '"format":99').replace('"format": 1', '"format": 99')
    )


def _garbage_manifest(directory: Path) -> None:
    (directory / "MANIFEST.json").write_bytes(b"\x80\x04garbage")


@pytest.mark.parametrize("damage", [_corrupt, _other_version, _garbage_manifest])
def test_f9_resuming_from_a_damaged_checkpoint_is_refused(lab: Laboratory, damage: Callable[[Path], None]) -> None:
    lab.succeed(lab.plan(iterations=1))
    (directory,) = committed_checkpoints(lab.trial_dir)
    damage(directory)

    def loop(config: dict[str, Any]) -> None:
        Marks(config["marks"]).say("resumed")

    with pytest.raises(CheckpointError, match="checkpoint_000000"):
        DataParallelTrainer(
            loop,
            train_loop_config={"marks": str(lab.marks.directory)},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(storage_path=str(lab.storage), verbose=0),
            resume_from_checkpoint=Checkpoint.from_directory(str(directory)),
        ).fit()
    assert lab.marks.read("resumed") == []


@pytest.mark.parametrize("content", [None, "file", "empty"])
def test_f9_restoring_a_foreign_directory_is_refused(lab: Laboratory, content: str | None) -> None:
    place = lab.root / "foreign"
    if content is not None:
        place.mkdir()
    if content == "file":
        (place / "holiday.jpg").write_bytes(b"\xff\xd8")
    assert not DataParallelTrainer.can_restore(str(place))
    with pytest.raises(PacelineError, match="foreign"):
        DataParallelTrainer.restore(str(place), train_loop_per_worker=lambda: None).fit()


@pytest.mark.parametrize(
    "name", ["a/b", "../x", "/abs", "", ".", "..", "x" * 300, "nul\0", "new\nline", "con", "-leading"]
)
def test_f10_names_that_are_no_path_part(name: str) -> None:
    with pytest.raises(ConfigError):
        RunConfig(name=name)


def test_f10_unicode_name_is_normalised(lab: Laboratory) -> None:
    decomposed = unicodedata.normalize("NFD", "größe-ü")
    result = lab.trainer(lambda: session.report({"iteration": 1}), name=decomposed).fit()
    check_run(result.path, result=result, iterations=1)
    assert Path(result.path).parent.name == unicodedata.normalize("NFC", decomposed)


@pytest.mark.parametrize("kind", ["unicode and spaces", "not UTF-8", "deep"])
def test_f11_awkward_storage_paths(lab: Laboratory, kind: str) -> None:
    """In a driver whose locale knows only ASCII."""
    base = os.fsencode(lab.root)
    if kind == "unicode and spaces":
        place = os.path.join(base, "größe ∑ 数据".encode(), b"with  space'\"$(x)")
    elif kind == "not UTF-8":
        place = os.path.join(base, b"caf\xe9")
    else:
        place = os.path.join(base, *[b"d" * 200] * ((3600 - len(base)) // 201))
    os.makedirs(place)
    lab.storage = Path(os.fsdecode(place))
    with lab.drive(
        lab.plan(iterations=2), env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ) as driver:
        assert driver.wait() == 0
    check_run(lab.trial_dir)
    assert os.fsencode(lab.trial_dir).startswith(place)
    assert len(committed_checkpoints(lab.trial_dir)) == 2


def test_f12_report_outside_a_session() -> None:
    with pytest.warns(UserWarning, match="report"):
        session.report({"iteration": 1})


def test_f12_report_from_a_thread(lab: Laboratory) -> None:
    def loop() -> None:
        import threading

        for iteration in (1, 2):
            thread = threading.Thread(target=session.report, args=({"iteration": iteration},))
            thread.start()
            thread.join()

    result = lab.trainer(loop).fit()
    check_run(result.path, result=result, iterations=2)


def test_f12_report_from_a_child_process(lab: Laboratory) -> None:
    """A forked child (as a DataLoader has) is told its pid; the run itself goes on."""

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


def test_f12_report_after_the_function_returned(lab: Laboratory) -> None:
    def loop(config: dict[str, Any]) -> None:
        import atexit
        import threading

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


UNGUARDED = """
    import sys
    from dataclasses import dataclass
    from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
    from paceline.train import DataParallelTrainer

    FACTOR = 3

    @dataclass
    class Local:
        value: int

    def helper(value):
        return Local(value * FACTOR)

    def loop(config):
        import pickle
        assert pickle.loads(pickle.dumps(Local(1))) == Local(1)
        session.report({"value": helper(config["start"]).value}, checkpoint=Checkpoint.from_dict({"it": Local(5)}))

    result = DataParallelTrainer(
        loop,
        train_loop_config={"start": 14},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=sys.argv[1], verbose=0),
    ).fit()
    print("value", result.metrics["value"], result.checkpoint.to_dict()["it"])
"""


@pytest.mark.parametrize("way", ["script", "stdin", "command"])
def test_f13_programs_without_a_main_guard(lab: Laboratory, way: str) -> None:
    source = textwrap.dedent(UNGUARDED)
    script = lab.root / "my script.py"
    script.write_text(source)
    arguments = {"script": [str(script)], "stdin": ["-"], "command": ["-c", source]}[way]
    done = subprocess.run(
        [sys.executable, *arguments, str(lab.storage)],
        input=source if way == "stdin" else "",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "value 42 Local(value=5)"
    check_run(lab.trial_dir)


def test_f13_function_of_a_notebook_cell(lab: Laboratory) -> None:
    """Cells are compiled from a name that is no file, into the namespace of __main__."""
    notebook = lab.root / "notebook.py"
    notebook.write_text(
        f"source = {textwrap.dedent(UNGUARDED)!r}\nexec(compile(source, '<ipython-input-1-abc>', 'exec'), globals())\n"
    )
    with Driver([str(notebook), str(lab.storage)], output=lab.root / "notebook.txt") as driver:
        assert driver.wait() == 0
        assert "value 42 Local(value=5)" in driver.text()


def test_f13_local_function_and_class(lab: Laboratory) -> None:
    class Model:
        weight = 7

    result = lab.trainer(lambda: session.report({"weight": Model().weight})).fit()
    assert result.metrics is not None
    assert result.metrics["weight"] == 7


def test_f14_empty_report(lab: Laboratory) -> None:
    result = lab.trainer(lambda: session.report({})).fit()
    check_run(result.path, result=result, iterations=1)


def test_f14_rank_zero_is_the_row_and_the_others_are_kept_beside_it(lab: Laboratory) -> None:
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


def test_f_failing_input_is_no_reason_to_retry_what_is_deterministic(lab: Laboratory) -> None:
    """A user's error does count as a failure: it is retried as often as was asked for, no more."""
    error = lab.fail(
        lab.plan(Action("raise", 2, 0, "same again", times=9), failures={"max_failures": 1}),
        {"rank": 0, "kind": "exception"},
        attempts=2,
    )
    assert isinstance(error.__cause__, ValueError)
    assert isinstance(error, TrainingFailedError)
