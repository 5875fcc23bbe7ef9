"""concurrency=n: functions in processes of their own, which never outlive their use and never keep anyone waiting."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from paceline import data
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import DataError, SerializationError, TrainingFailedError
from paceline.data.block import Block, ReadRequest, Source
from paceline.data.dataset_transforms import Transforms
from paceline.data.formats import to_numpy
from paceline.data.sources.computed import TableSource
from paceline.train import DataParallelTrainer

GUARD_S = 60.0
"""Against hanging only; nothing takes that long."""


@pytest.fixture
def closing() -> Iterator[Callable[[Transforms], Transforms]]:
    """Ends the processes of a dataset after the test."""
    made: list[Transforms] = []

    def close_later(ds: Transforms) -> Transforms:
        made.append(ds)
        return ds

    yield close_later
    for ds in made:
        ds.plan.close()


def dataset(rows: int = 100, block_rows: int = 60) -> Transforms:
    return Transforms(TableSource(pa.table({"a": range(rows)}), block_rows))


def read(ds: Transforms, block: int) -> Any:
    return ds.plan.read(block, ReadRequest())


def table(ds: Transforms) -> pa.Table:
    return pa.Table.from_batches([chunk for block in range(len(ds.plan.blocks())) for chunk in read(ds, block)])


def with_pid(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"a": batch["a"], "pid": np.full(len(batch["a"]), os.getpid())}


def pids_of(ds: Transforms) -> set[int]:
    return set(table(ds)["pid"].to_pylist())


def wait_until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + GUARD_S
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.01)


def test_rows_keep_their_order_and_are_made_elsewhere(closing: Any) -> None:
    def slow_first(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if batch["a"][0] == 0:
            time.sleep(0.1)  # the others overtake
        return with_pid(batch)

    ds = closing(dataset().map_batches(slow_first, batch_size=7, concurrency=2))
    result = table(ds)
    assert result["a"].to_pylist() == list(range(100))
    pids = set(result["pid"].to_pylist())
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert pids_of(ds) == pids  # the next epoch runs in the same processes


def test_all_kinds_of_functions(closing: Any) -> None:
    ds = dataset(10, 6)
    mapped = closing(ds.map(lambda row: {"x": -row["a"]}, concurrency=1))
    assert table(mapped)["x"].to_pylist() == [-i for i in range(10)]
    kept = closing(ds.filter(lambda row: row["a"] > 7, concurrency=1))
    assert table(kept)["a"].to_pylist() == [8, 9]
    twice = closing(ds.flat_map(lambda row: [row, row], concurrency=1))
    assert table(twice)["a"].to_pylist() == [i // 2 for i in range(20)]
    added = closing(ds.add_column("b", lambda frame: frame["a"] * 2, concurrency=1))
    assert table(added)["b"].to_pylist() == [2 * i for i in range(10)]


def test_batches_that_are_yielded_tensors_and_strings_travel(closing: Any) -> None:
    def spread(batch: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
        for value in batch["a"]:
            ragged = [np.zeros((value + 1, 2)), np.zeros((value + 2, 2))]
            yield {"t": np.full((2, 2, 3), value), "s": [f"s{value}", None], "ragged": ragged}

    result = table(closing(dataset(4, 4).map_batches(spread, concurrency=2)))
    assert result["s"].to_pylist() == ["s0", None, "s1", None, "s2", None, "s3", None]
    assert result["t"].combine_chunks().to_numpy_ndarray().shape == (8, 2, 3)
    ragged = to_numpy(result["ragged"].combine_chunks(), copy=False)
    assert [cell.shape[0] for cell in ragged] == [1, 2, 2, 3, 3, 4, 4, 5]


class Counting:
    def __init__(self, start: int) -> None:
        self.calls = start

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.calls += 1
        return {"calls": np.array([self.calls]), "pid": np.array([os.getpid()])}


def test_a_class_is_made_once_per_process(closing: Any) -> None:
    ds = closing(dataset().map_batches(Counting, batch_size=10, fn_constructor_args=[100], concurrency=1))
    assert table(ds)["calls"].to_pylist() == list(range(101, 111))
    assert table(ds)["calls"].to_pylist() == list(range(111, 121))


def test_the_number_of_processes_grows_as_needed(closing: Any, tmp_path: Path) -> None:
    one_batch = closing(dataset(10, 10).map_batches(with_pid, concurrency=(1, 3)))
    assert len(pids_of(one_batch)) == 1

    def meet(batch: dict[str, np.ndarray], folder: str) -> dict[str, np.ndarray]:
        Path(folder, str(os.getpid())).touch()
        deadline = time.monotonic() + GUARD_S
        while len(os.listdir(folder)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return with_pid(batch)

    ds = closing(dataset(10, 10).map_batches(meet, batch_size=1, fn_args=[str(tmp_path)], concurrency=(1, 2)))
    assert len(pids_of(ds)) == 2


def test_what_the_function_prints_is_seen(closing: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def loud(batch: Any) -> Any:
        print("hello from the function")
        return batch

    table(closing(dataset(3).map_batches(loud, concurrency=1)))
    assert "hello from the function" in capfd.readouterr().out


def test_an_exception_arrives_with_its_type_place_and_traceback(closing: Any) -> None:
    def broken(row: dict[str, Any]) -> Any:
        return {"x": 1 // (row["a"] - 62)}

    ds = closing(dataset().map(broken, concurrency=2))
    with pytest.raises(DataError, match=r"map\(broken\) at .*row 2 of .*ZeroDivisionError") as caught:
        table(ds)
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert any("in broken" in note for note in cause.__notes__)
    assert len(table(closing(dataset(50).map(broken, concurrency=1)))) == 50


def test_an_exception_that_cannot_travel_is_told(closing: Any) -> None:
    def broken(batch: Any) -> Any:
        error = RuntimeError("holds a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(DataError, match="RuntimeError: holds a lock") as caught:
        table(closing(dataset().map_batches(broken, concurrency=1)))
    assert "holds a lock" in str(caught.value.__cause__)


def test_results_that_cannot_be_used_are_refused_there_as_here(closing: Any) -> None:
    with pytest.raises(DataError, match=r"map_batches\(<lambda>\) at .*None.*rows 0 to 59"):
        table(closing(dataset().map_batches(lambda batch: None, concurrency=1)))


def test_a_function_that_cannot_travel_is_named(closing: Any) -> None:
    lock = threading.Lock()

    def locked(batch: Any) -> Any:
        with lock:
            return batch

    with pytest.raises(SerializationError, match=r"map_batches\(locked\).*'lock'.*concurrency.*constructor"):
        table(closing(dataset().map_batches(locked, concurrency=1)))


def no_connection() -> Any:
    raise ConnectionRefusedError("no database here")


class ConnectsWhenItArrives:
    def __call__(self, batch: Any) -> Any:
        return batch

    def __reduce__(self) -> Any:
        return no_connection, ()


def test_a_function_that_cannot_connect_when_it_arrives_is_named(closing: Any) -> None:
    """As a module does that connects when it is imported: the process does not take it for the end of the pool."""
    ds = closing(dataset().map_batches(ConnectsWhenItArrives(), concurrency=2))
    with pytest.raises(DataError, match=r"cannot be run in another process: .*no database here") as caught:
        table(ds)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


def test_a_killed_process_is_an_error_at_once_and_the_next_pass_has_a_new_one(closing: Any, tmp_path: Path) -> None:
    def die_once(batch: dict[str, np.ndarray], mark: str) -> dict[str, np.ndarray]:
        if batch["a"][0] == 20 and not os.path.exists(mark):
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    ds = closing(dataset().map_batches(die_once, batch_size=10, fn_args=[str(tmp_path / "mark")], concurrency=2))
    with pytest.raises(DataError, match=r"map_batches\(die_once\) .*rows 20 to 29 of .*SIGKILL"):
        table(ds)
    assert table(ds)["a"].to_pylist() == list(range(100))


def test_a_function_that_exits_is_an_error(closing: Any) -> None:
    def leave(batch: Any) -> Any:
        sys.exit(7)

    with pytest.raises(DataError, match="code 7"):
        table(closing(dataset().map_batches(leave, concurrency=1)))


def test_a_process_that_dies_and_leaves_a_child_with_its_connection_is_an_error_too(
    closing: Any, tmp_path: Path
) -> None:
    def fork_and_die(batch: Any, file: str) -> Any:
        child = os.fork()
        if child == 0:
            signal.alarm(int(GUARD_S))
            signal.pause()
        Path(file).write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)

    file = tmp_path / "pid"
    with pytest.raises(DataError, match="SIGKILL"):
        table(closing(dataset().map_batches(fork_and_die, fn_args=[str(file)], concurrency=1)))
    wait_until_gone({int(file.read_text())})


class Endless(Source):
    """One block that never ends, and says how far it was read."""

    def __init__(self) -> None:
        self.given = 0

    def blocks(self) -> list[Block]:
        return [Block("endless")]

    def schema(self) -> pa.Schema:
        return pa.schema({"a": pa.int64()})

    def read(self, block: int, request: ReadRequest) -> Iterator[Any]:
        while True:
            self.given += 1
            yield pa.RecordBatch.from_pydict({"a": [self.given]})


def test_only_a_few_batches_are_under_way(closing: Any) -> None:
    source = Endless()
    ds = closing(Transforms(source).map_batches(with_pid, batch_size=1, concurrency=2))
    results = read(ds, 0)
    for expected in range(1, 11):
        assert next(results).column("a").to_pylist() == [expected]
        assert source.given <= expected + 5


def test_several_passes_at_once_do_not_wait_for_each_other(closing: Any) -> None:
    ds = closing(Transforms(Endless()).map_batches(with_pid, batch_size=1, concurrency=1))
    first, second = read(ds, 0), read(ds, 0)
    for _ in range(5):
        assert next(first).num_rows == next(second).num_rows == 1
    first.close()  # given up in the middle
    assert next(second).num_rows == 1


def test_processes_outlive_the_thread_that_first_needed_them(closing: Any) -> None:
    ds = closing(dataset().map_batches(with_pid, concurrency=1))
    seen: list[set[int]] = []
    thread = threading.Thread(target=lambda: seen.append(pids_of(ds)))
    thread.start()
    thread.join()
    assert pids_of(ds) == seen[0]


def test_processes_end_with_close_and_start_again_when_needed(closing: Any) -> None:
    ds = closing(dataset().map_batches(with_pid, concurrency=2))
    before = pids_of(ds)
    ds.plan.close()
    assert not any(psutil.pid_exists(pid) for pid in before)
    assert not pids_of(ds) & before


def test_closing_does_not_wait_for_a_function_that_is_stuck(closing: Any) -> None:
    def stuck(batch: dict[str, np.ndarray]) -> Any:
        if batch["a"][0] == 0:
            return with_pid(batch)
        threading.Event().wait()

    ds = closing(dataset().map_batches(stuck, batch_size=10, concurrency=1))
    results = read(ds, 0)
    pids = set(next(results).column("pid").to_pylist())
    ds.plan.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(DataError, match="closed while"):
        next(results)


def test_processes_end_when_nobody_refers_to_the_dataset_any_more() -> None:
    ds = dataset().map_batches(with_pid, concurrency=2)
    pids = pids_of(ds)
    del ds
    gc.collect()
    wait_until_gone(pids)


def test_the_others_end_too_when_one_was_killed_and_nobody_refers_to_the_dataset() -> None:
    def die_late(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if batch["a"][0] >= 60:
            os.kill(os.getpid(), signal.SIGKILL)
        return with_pid(batch)

    ds = dataset().map_batches(die_late, batch_size=10, concurrency=2)
    pids = {pid for chunk in read(ds, 0) for pid in chunk.column("pid").to_pylist()}
    with pytest.raises(DataError, match="SIGKILL"):
        list(read(ds, 1))
    del ds
    gc.collect()
    wait_until_gone(pids)


def test_a_run_shows_the_line_of_the_function_in_another_process(tmp_path: Path) -> None:
    def helper(batch: Any) -> Any:
        raise ValueError("deep inside")

    def calls_helper(batch: Any) -> Any:
        return helper(batch)

    def read_all() -> None:
        for _ in session.get_dataset_shard("train").iter_batches():
            pass

    trainer = DataParallelTrainer(
        read_all,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path)),
        datasets={"train": data.range(5).map_batches(calls_helper, concurrency=1, keeps_row_count=True)},
    )
    with pytest.raises(TrainingFailedError) as caught:
        trainer.fit()
    text = str(caught.value)
    assert "in helper" in text
    assert 'raise ValueError("deep inside")' in text
    assert "in read_all" in text
    assert "concurrent" not in text
