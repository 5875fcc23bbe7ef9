"""Sources and sinks of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from paceline import data
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, DataError
from paceline.data.block import BlockMetadata
from paceline.data.datasource import Datasink, Datasource, FileBasedDatasource, Reader, ReadTask, TaskContext
from paceline.data.sources.computed import RangeSource
from paceline.train import DataParallelTrainer
from tests.data.reading import check_pieces, plan_of


def task(start: int, rows: int, said: int | None) -> ReadTask:
    def read() -> Iterator[Any]:
        half = rows // 2
        yield pa.table({"x": list(range(start, start + half))})
        yield pd.DataFrame({"x": range(start + half, start + rows)})

    return ReadTask(read, BlockMetadata(num_rows=said, size_bytes=8 * rows, input_files=[f"part-{start}"]))


class Counting(Datasource):
    def __init__(self, counted: bool = True) -> None:
        self._counted = counted

    def get_read_tasks(self, parallelism: int) -> list[ReadTask]:
        return [task(10 * n, 10, 10 if self._counted else None) for n in range(parallelism)]


class WithReader(Datasource):
    def create_reader(self, **read_args: Any) -> Reader:
        return CountingReader(**read_args)


class CountingReader(Reader):
    def __init__(self, n: int) -> None:
        self._n = n

    def get_read_tasks(self, parallelism: int) -> list[ReadTask]:
        return [ReadTask(lambda: [[{"x": x} for x in range(self._n)]], BlockMetadata())]


class Oldest(Datasource):
    def prepare_read(self, parallelism: int, **read_args: Any) -> list[ReadTask]:
        return [task(0, read_args["n"], read_args["n"])]


@pytest.mark.parametrize("counted", [True, False])
def test_read_tasks_are_blocks(counted: bool) -> None:
    dataset = data.read_datasource(Counting(counted), parallelism=3)
    assert dataset.num_blocks() == 3
    assert [row["x"] for row in dataset.take_all()] == list(range(30))
    assert dataset.input_files() == ["part-0", "part-10", "part-20"]
    check_pieces(plan_of(dataset))


def test_older_ways_to_define_one() -> None:
    assert data.read_datasource(WithReader(), n=4).count() == 4
    assert data.read_datasource(Oldest(), n=6).sum("x") == 15
    assert data.read_datasource(RangeSource(7)).count() == 7


class Wrong(Datasource):
    def __init__(self, said: int) -> None:
        self._said = said

    def get_read_tasks(self, parallelism: int) -> list[ReadTask]:
        return [task(0, 10, self._said)]


@pytest.mark.parametrize("said", [9, 11])
def test_a_wrong_number_of_rows_is_an_error(said: int) -> None:
    with pytest.raises(DataError, match=rf"Wrong, task 0.*num_rows={said}"):
        data.read_datasource(Wrong(said)).take_all()


def test_what_a_task_raises_names_the_task() -> None:
    def read() -> Iterator[Any]:
        raise OSError("the line is dead")
        yield

    class Broken(Datasource):
        def get_read_tasks(self, parallelism: int) -> list[ReadTask]:
            return [ReadTask(read)]

    with pytest.raises(DataError, match=r"Broken, task 0.*OSError: the line is dead"):
        data.read_datasource(Broken()).take_all()
    with pytest.raises(ConfigError, match=r"list.*get_read_tasks"):
        data.read_datasource([])
    with pytest.raises(NotImplementedError, match="get_read_tasks"):
        data.read_datasource(Datasource())


def test_a_run_splits_the_tasks_exactly(tmp_path: Path) -> None:
    def train_loop() -> None:
        shard = session.get_dataset_shard("train")
        ids = [x for batch in shard.iter_batches(batch_size=4) for x in batch["x"].tolist()]
        session.report({"sum": sum(ids), "rows": len(ids)}, reduce={"sum": "sum", "rows": "sum"})

    result = DataParallelTrainer(
        train_loop,
        datasets={"train": data.read_datasource(Counting(), parallelism=3)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path)),
    ).fit()
    assert (result.metrics["rows"], result.metrics["sum"]) == (30, sum(range(30)))


class Lengths(FileBasedDatasource):
    _FILE_EXTENSIONS = ("len",)

    def _read_stream(self, f: pa.NativeFile, path: str, unit: int = 1) -> Iterator[pa.Table]:
        yield pa.table({"length": [len(f.read()) // unit], "name": [path.rpartition("/")[2]]})


def test_files_that_a_method_reads(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.len").write_bytes(b"x" * 10 * number)
    (tmp_path / "other.txt").write_text("not meant")
    dataset = data.read_datasource(Lengths(), paths=str(tmp_path), unit=10)
    assert dataset.take_all() == [{"length": n, "name": f"{n}.len"} for n in range(3)]
    assert data.read_datasource(Lengths(str(tmp_path), include_paths=True)).columns() == ["length", "name", "path"]
    with pytest.raises(ConfigError, match="paths"):
        data.read_datasource(Lengths())


class Sink(Datasink):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_write_start(self) -> None:
        self.calls.append("start")

    def write(self, blocks: Iterable[Any], ctx: TaskContext) -> int:
        rows = sum(block.num_rows for block in blocks)
        if rows > 5:
            raise ValueError("too many")
        return rows

    def on_write_complete(self, write_results: list[Any]) -> None:
        self.calls.append(write_results)

    def on_write_failed(self, error: Exception) -> None:
        self.calls.append(str(error))


def test_writing_to_a_sink() -> None:
    sink = Sink()
    data.range(10, parallelism=2).write_datasink(sink)
    assert sink.calls == ["start", [5, 5]]
    with pytest.raises(ValueError, match="too many"):
        data.range(10, parallelism=1).write_datasink(sink)
    assert sink.calls[2:] == ["start", "too many"]
    with pytest.raises(ConfigError, match=r"list.*write\(blocks, ctx\)"):
        data.range(10).write_datasink([])


def test_writing_to_a_datasource() -> None:
    seen: list[Any] = []

    class Place(Datasource):
        def write(self, blocks: Iterable[Any], ctx: TaskContext, **write_args: Any) -> str:
            seen.append((ctx.task_idx, write_args["table"], [block.column("id").to_pylist() for block in blocks]))
            return "ok"

    data.range(4, parallelism=2).write_datasource(Place(), table="t")
    assert seen == [(0, "t", [[0, 1]]), (1, "t", [[2, 3]])]
