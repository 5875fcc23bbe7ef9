"""What holds for every library of boosted trees, whatever it does inside: engines, runs at once, storage, quiet."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paceline import data
from paceline.air import CheckpointConfig, Result, session
from paceline.air.errors import TrainingFailedError
from paceline.testing.invariants import check_run, listening_sockets
from paceline.testing.processes import Driver, Marks
from tests.storage.s3_server import s3_filesystem, s3_server
from tests.train.preempting import preempt_first_attempt
from tests.train.trees.libraries import (
    XGBOOST,
    Library,
    Task,
    binary,
    both_libraries,
    one_library,
    other_library,
    regression,
    rows_of,
)

EVERYWHERE = ("tcp 00000000:", "tcp6 00000000000000000000000000000000:")


def each_round(library: Library, action: Callable[[int], None]) -> dict[str, Any]:
    """The trainer's arguments for something to be done before each round."""
    return {"callbacks": [library.before_rounds(action)]}


# -- engines and workers --------------------------------------------------------------------


@both_libraries
@pytest.mark.parametrize("engine", [pytest.param("local", marks=pytest.mark.slow), "inline"])
def test_one_worker_makes_the_model_of_the_library_alone(library: Library, engine: str) -> None:
    task = binary()
    expected, _ = library.alone(task, 10)
    before = dict(os.environ)
    result = library.trainer(task, workers=1, engine=engine).fit()
    check_run(result.path, result=result, iterations=10, attempts=1)
    assert rows_of(result, library.key(task)) == pytest.approx(expected, rel=1e-9)
    assert dict(os.environ) == before


@both_libraries
def test_a_preempted_run_keeps_the_round_it_was_preempted_in(library: Library) -> None:
    """Without checkpoint_frequency, and without a checkpoint at the end: the run asks for this one."""
    never = CheckpointConfig(checkpoint_at_end=False)
    preempted = each_round(library, lambda number: preempt_first_attempt() if number == 4 else None)
    result = library.trainer(regression(), num_boost_round=7, checkpoint_config=never, **preempted).fit()
    check_run(result.path, result=result, iterations=7, attempts=2)
    assert library.rounds(result.checkpoint) == 4
    undisturbed = library.trainer(regression(), num_boost_round=7).fit()
    key = library.key(regression())
    assert rows_of(result, key) == pytest.approx(rows_of(undisturbed, key), rel=1e-9)


@both_libraries
def test_inline_a_failed_run_does_not_stand_in_the_way_of_the_next(library: Library) -> None:
    def fail(number: int) -> None:
        if number == 3:
            raise RuntimeError("for the test")

    task = binary()
    with pytest.raises(TrainingFailedError, match="for the test") as caught:
        library.trainer(task, engine="inline", **each_round(library, fail)).fit()
    check_run(caught.value.result.path, error=caught.value, iterations=2, attempts=1)
    result = library.trainer(task, engine="inline").fit()
    assert library.rounds(result.checkpoint) == 10


@both_libraries
def test_what_workers_listen_on_while_they_train(library: Library, tmp_path: Path) -> None:
    """Ours is on the loopback address. XGBoost keeps one port per worker open to all, for word of failures, which it
    offers no way to change; those of LightGBM are closed when everyone is connected."""

    def note(number: int) -> None:
        Marks(tmp_path).say("listening", rank=session.get_world_rank(), sockets=listening_sockets(os.getpid()))

    library.trainer(binary(), num_boost_round=2, **each_round(library, note)).fit()
    said = Marks(tmp_path).read("listening")
    assert {mark["rank"] for mark in said} == {0, 1}
    for mark in said:
        open_to_all = [socket for socket in mark["sockets"] if socket.startswith(EVERYWHERE)]
        assert len(open_to_all) <= (1 if library is XGBOOST else 0)


# -- several runs ---------------------------------------------------------------------------


@one_library
def test_runs_of_one_trainer_after_each_other_are_the_same(library: Library) -> None:
    trainer = library.trainer(binary())
    first, second = trainer.fit(), trainer.fit()
    assert first.path != second.path
    for result in (first, second):
        check_run(result.path, result=result, iterations=10, attempts=1)
    assert library.model_text(first.checkpoint) == library.model_text(second.checkpoint)


@other_library
def test_runs_at_the_same_time_do_not_meet(library: Library, tmp_path: Path) -> None:
    """Both are connected before either of them goes on."""
    marks = Marks(tmp_path)

    def meet(number: int) -> None:
        if number == 1:
            marks.say("connected")
            marks.wait("connected", 4)

    tasks: list[Task] = [binary(), regression()]
    expected = [library.trainer(task).fit() for task in tasks]

    def fit(task: Task) -> Result:
        found: Result = library.trainer(task, **each_round(library, meet)).fit()
        return found

    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(fit, tasks))
    for task, result, alone in zip(tasks, together, expected, strict=True):
        assert rows_of(result, library.key(task)) == rows_of(alone, library.key(task))
        assert library.model_text(result.checkpoint) == library.model_text(alone.checkpoint)
        check_run(result.path, result=result, iterations=10, attempts=1)


# -- data and storage -----------------------------------------------------------------------


@other_library
def test_rows_from_files_and_from_functions_are_those_in_memory(library: Library, tmp_path: Path) -> None:
    task = regression()
    for name, dataset in task.datasets().items():
        dataset.repartition(3).write_parquet(str(tmp_path / name))
    in_memory = library.trainer(task).fit()
    from_files = library.trainer(
        task,
        datasets={
            "train": data.read_parquet(str(tmp_path / "train")),
            "valid": lambda: data.read_parquet(str(tmp_path / "valid")),
        },
    ).fit()
    assert library.model_text(from_files.checkpoint) == library.model_text(in_memory.checkpoint)
    assert rows_of(from_files, library.key(task)) == rows_of(in_memory, library.key(task))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket, which driver and workers reach by the environment alone."""
    s3fs = pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with s3_server() as endpoint:
        s3fs.S3FileSystem.clear_instance_cache()
        s3_filesystem(endpoint).call_s3("create_bucket", Bucket="bucket")
        surroundings = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        for name, value in surroundings.items():
            monkeypatch.setenv(name, value)
        yield "s3://bucket"
    s3fs.S3FileSystem.clear_instance_cache()


@one_library
def test_a_run_in_a_bucket(library: Library, bucket: str) -> None:
    task = regression()
    result = library.trainer(
        task,
        engine="inline",
        storage_path=f"{bucket}/results",
        checkpoint_config=CheckpointConfig(checkpoint_frequency=4, num_to_keep=2),
    ).fit()
    assert library.rounds(result.checkpoint) == 10
    predictor = library.predictor_class.from_checkpoint(type(result.checkpoint).from_uri(result.checkpoint.uri))
    predicted = predictor.predict(task.features("valid"))["predictions"]
    assert ((predicted - task.labels("valid")) ** 2).mean() ** 0.5 == pytest.approx(
        result.metrics[library.key(task)], rel=1e-5
    )


# -- quiet and light --------------------------------------------------------------------------


@one_library
def test_a_quiet_run_prints_nothing_and_its_driver_does_not_load_the_library(library: Library, tmp_path: Path) -> None:
    """Nor what the other one brings along. Warnings of either would be printed too."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys
            from tests.train.trees.libraries import LIGHTGBM, XGBOOST, binary

            result = {library.name.upper()}.trainer(binary(), storage_path={str(tmp_path / "storage")!r}).fit()
            assert len(result.metrics_dataframe) == 10
            assert not {{"xgboost", "lightgbm"}} & set(sys.modules), "the driver has loaded a library of trees"
        """)
    )
    with Driver(["-W", "error", str(script)], output=tmp_path / "driver.txt") as driver:
        assert driver.wait(60) == 0, driver.text()
        assert driver.text() == ""
    logs = list((tmp_path / "storage").rglob("rank_*.log"))
    assert [log.read_text() for log in logs] == ["", ""]
