"""What a rank reads: every row once, queries whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline import data
from paceline.air import ScalingConfig, session
from paceline.air.config import RunConfig
from paceline.air.errors import DataError, TrainingFailedError
from paceline.train import DataParallelTrainer
from paceline.train.trees.task import dataset_names, is_split, read_shard


def read_on(workers: int, dataset: data.Dataset, query_column: str | None = "query") -> list[dict[str, Any]]:
    """What each rank has read, and what a second look gave."""

    def loop() -> None:
        table = read_shard("train", query_column=query_column)
        again = read_shard("train", query_column=query_column, columns=["row"])
        session.report(
            {
                "rows": table.column("row").to_pylist(),
                "queries": table.column("query").to_pylist(),
                "again": again.column("row").to_pylist(),
                "columns": again.column_names,
                "names": dataset_names(),
                "split": is_split("train"),
            }
        )

    trainer = DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, engine="inline" if workers == 1 else None),
        datasets={"zebra": dataset, "train": dataset, "other": dataset},
        dataset_config={"train": data_config()},
    )
    result = trainer.fit()
    return [result.rank_metrics[rank] for rank in range(workers)]


def data_config() -> Any:
    from paceline.air.data_config import DatasetConfig

    return DatasetConfig(split=True, uneven="all", randomize_block_order=False)


def queries(sizes: list[int]) -> pa.Table:
    numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
    return pa.table({"row": range(len(numbers)), "query": [f"q{number}" for number in numbers]})


@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_queries_are_never_cut(tmp_path: Path, workers: int) -> None:
    sizes = [random.Random(3).randint(1, 40) for _ in range(50)]
    table = queries(sizes)
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    ranks = read_on(workers, data.read_parquet(str(tmp_path / "rows.parquet")))
    assert [row for rank in ranks for row in rank["rows"]] == list(range(table.num_rows))
    seen = [set(rank["queries"]) for rank in ranks]
    assert sum(map(len, seen)) == len(sizes)
    fair = table.num_rows / workers
    assert all(abs(len(rank["rows"]) - fair) <= max(sizes) for rank in ranks)
    for rank in ranks:
        assert rank["again"] == rank["rows"]
        assert rank["columns"] == ["row"]
        assert rank["names"] == ["train", "zebra", "other"]
        assert rank["split"] is True


def test_fewer_queries_than_workers_leave_a_rank_without_rows() -> None:
    ranks = read_on(3, data.from_arrow(queries([5, 90])))
    assert sorted(len(rank["rows"]) for rank in ranks) == [0, 5, 90]


def test_rows_of_a_query_must_be_together() -> None:
    table = pa.table({"row": [0, 1, 2], "query": ["a", "b", "a"]})
    with pytest.raises(TrainingFailedError, match=r"dataset.sort\('query'\)") as caught:
        read_on(2, data.from_arrow(table))
    assert isinstance(caught.value.__cause__, DataError)
    assert len(read_on(1, data.from_arrow(table).sort("query"))[0]["rows"]) == 3


def test_a_query_column_without_a_value_is_refused() -> None:
    table = pa.table({"row": [0, 1, 2], "query": ["a", None, "b"]})
    with pytest.raises(TrainingFailedError, match=r"'query'.*missing"):
        read_on(2, data.from_arrow(table))


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(TrainingFailedError, match=r"'qid'.*row, query"):
        read_on(1, data.from_arrow(queries([2, 2])), query_column="qid")


def test_without_queries_every_row_is_read_once() -> None:
    ranks = read_on(2, data.from_arrow(queries([1] * 7)), query_column=None)
    assert [rank["rows"] for rank in ranks] == [[0, 1, 2, 3], [4, 5, 6]]
