"""Settings, names, places and programs that users get wrong, refused or understood."""

from __future__ import annotations

import itertools
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
    PacelineError,
    SerializationError,
)
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.processes import Driver, Marks
from paceline.train import DataParallelTrainer
from tests.faults.cases import mostly_slow
from tests.faults.laboratory import Laboratory


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True, 10**6])
def test_impossible_numbers_of_workers_are_rejected(number: Any) -> None:
    """F1."""
    with pytest.raises(ConfigError, match="num_workers"):
        ScalingConfig(num_workers=number)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("order", ["max", "min"])
@pytest.mark.parametrize(
    ("scores", "max_best", "min_best"),
    [
        pytest.param([NAN, 1.0, INF, None, -INF, 2.0], [2.0, INF], [1.0, -INF], id="everything"),
        pytest.param([NAN, 1.0, NAN, 3.0, 2.0, NAN], [2.0, 3.0], [2.0, 1.0], id="NaN", marks=pytest.mark.slow),
        pytest.param([1.0, INF, -INF, 2.0], [2.0, INF], [1.0, -INF], id="infinite", marks=pytest.mark.slow),
        pytest.param([None, 1.0, None, 3.0, 2.0, None], [2.0, 3.0], [2.0, 1.0], id="missing", marks=pytest.mark.slow),
    ],
)
def test_bad_scores_rank_worst_whichever_way(
    lab: Laboratory, order: str, scores: list[float | None], max_best: list[float], min_best: list[float]
) -> None:
    """F2."""
    result = _with_scores(lab, scores, checkpoint_score_order=order).fit()
    check_run(result.path, result=result, iterations=len(scores), attempts=1)
    assert [row.get("score") for _, row in result.best_checkpoints] == (max_best if order == "max" else min_best)
    newest = result.checkpoint
    assert newest is not None
    assert newest.to_dict()["iteration"] == len(scores)


@pytest.mark.parametrize(
    ("score", "order"),
    mostly_slow(itertools.product([None, NAN], ["max", "min"]), everyday=[(None, "max"), (NAN, "min")]),
)
def test_without_any_usable_score_the_newest_are_kept(lab: Laboratory, order: str, score: float | None) -> None:
    """F3."""
    result = _with_scores(lab, [score] * 5, checkpoint_score_order=order).fit()
    check_run(result.path, result=result, iterations=5, attempts=1)
    assert [checkpoint.to_dict()["iteration"] for checkpoint, _ in result.best_checkpoints] == [4, 5]
    if score is None:
        assert sum("score" in warning for warning in result.warnings) == 1, "warned not once"


def test_nested_score_ranks_checkpoints(lab: Laboratory) -> None:
    """F3."""

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


def test_score_that_is_not_a_number_is_rejected(lab: Laboratory) -> None:
    """F3."""

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
def test_config_that_cannot_be_pickled_names_the_entry(
    lab: Laboratory, make: Callable[[], dict[str, Any]], path: str
) -> None:
    """F4."""

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


def test_function_that_cannot_be_pickled_names_the_variable(lab: Laboratory) -> None:
    """F4."""
    captured_lock = threading.Lock()

    def loop() -> None:
        with captured_lock:
            pass

    with pytest.raises(SerializationError, match="captured_lock"):
        lab.trainer(loop).fit()


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
def test_resuming_from_a_damaged_checkpoint_is_refused(lab: Laboratory, damage: Callable[[Path], None]) -> None:
    """F9."""
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
def test_restoring_a_foreign_directory_is_refused(lab: Laboratory, content: str | None) -> None:
    """F9."""
    place = lab.root / "foreign"
    if content is not None:
        place.mkdir()
    if content == "file":
        (place / "holiday.jpg").write_bytes(b"\xff\xd8")
    assert not DataParallelTrainer.can_restore(str(place))
    with pytest.raises(PacelineError, match="foreign"):
        DataParallelTrainer.restore(str(place), train_loop_per_worker=lambda: None).fit()


@pytest.mark.parametrize("name", ["a/b", "../x", "/abs", "", ".", "..", ".leading", "x" * 300, "nul\0", "new\nline"])
def test_names_that_cannot_be_a_directory_are_rejected(name: str) -> None:
    """F10."""
    with pytest.raises(ConfigError):
        RunConfig(name=name)


def test_unicode_name_is_normalised(lab: Laboratory) -> None:
    """F10."""
    decomposed = unicodedata.normalize("NFD", "größe-ü")
    result = lab.trainer(lambda: session.report({"iteration": 1}), name=decomposed).fit()
    check_run(result.path, result=result, iterations=1)
    assert Path(result.path).parent.name == unicodedata.normalize("NFC", decomposed)


@pytest.mark.parametrize("kind", mostly_slow(["unicode and spaces", "not UTF-8", "deep"], everyday=["not UTF-8"]))
def test_awkward_storage_paths_work(lab: Laboratory, kind: str) -> None:
    """F11: In a driver whose locale knows only ASCII."""
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


@pytest.mark.parametrize("way", mostly_slow(["script", "stdin", "command"], everyday=["script"]))
def test_programs_need_no_main_guard(lab: Laboratory, way: str) -> None:
    """F13."""
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


def test_functions_of_a_notebook_cell_work(lab: Laboratory) -> None:
    """F13: Cells are compiled from a name that is no file, into the namespace of __main__."""
    notebook = lab.root / "notebook.py"
    notebook.write_text(
        f"source = {textwrap.dedent(UNGUARDED)!r}\nexec(compile(source, '<ipython-input-1-abc>', 'exec'), globals())\n"
    )
    with Driver([str(notebook), str(lab.storage)], output=lab.root / "notebook.txt") as driver:
        assert driver.wait() == 0
        assert "value 42 Local(value=5)" in driver.text()


def test_local_functions_and_classes_work(lab: Laboratory) -> None:
    """F13."""

    class Model:
        weight = 7

    result = lab.trainer(lambda: session.report({"weight": Model().weight})).fit()
    assert result.metrics is not None
    assert result.metrics["weight"] == 7
