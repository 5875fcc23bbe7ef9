"""Data that is empty, too small, broken, or changes under the reader: told, never a hang."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline.air import DataConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import DataError, DataNotFoundError, TrainingFailedError
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer
from paceline.train.torch import TorchTrainer
from tests.faults.cases import mostly_slow

ALL = DataConfig(uneven="all")


def read_all(config: dict[str, Any]) -> None:
    """One epoch; then a report of what was read."""
    shard = session.get_dataset_shard("train")
    ids: list[int] = []
    for batch in shard.iter_batches(batch_size=config.get("batch_size", 10)):
        ids += batch["id"].tolist()
    session.report({"ids": ids, "left_out": shard.rows_left_out(0)})


def trainer(dataset: Any, workers: int = 2, loop: Callable[..., Any] = read_all, **arguments: Any) -> Any:
    return arguments.pop("kind", DataParallelTrainer)(
        loop,
        train_loop_config=arguments.pop("config", {}),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=0)),
        datasets={"train": dataset},
        **arguments,
    )


def given(*arguments: Any, **settings: Any) -> list[list[int]]:
    """The ids that each rank was given."""
    result = trainer(*arguments, **settings).fit()
    check_run(result.path, result=result)
    return [metrics["ids"] for metrics in result.rank_metrics.values()]


def failure(dataset: Any, **settings: Any) -> TrainingFailedError:
    """fit() must fail in a worker; nothing is left of it."""
    with pytest.raises(TrainingFailedError) as caught:
        trainer(dataset, **settings).fit()
    assert caught.value.result is not None
    check_run(caught.value.result.path, error=caught.value, attempts=1)
    return caught.value


def parquet_files(folder: Path, files: int = 10, rows: int = 100, row_group_rows: int = 20) -> list[Path]:
    paths = []
    for number in range(files):
        paths.append(folder / f"part-{number:02}.parquet")
        ids = range(number * rows, (number + 1) * rows)
        pq.write_table(pa.table({"id": ids}), paths[-1], row_group_size=row_group_rows, compression="none")
    return paths


# -- nothing, or too little ---------------------------------------------------------------


EMPTY: dict[str, Callable[[Path], Any]] = {
    "no items": lambda _: paceline.data.from_items([]),
    "none pass a filter": lambda _: paceline.data.range(50).filter(lambda row: False),
    "empty file": lambda folder: paceline.data.read_parquet(str(parquet_files(folder, 1, 0)[0])),
}


@pytest.mark.parametrize("kind", mostly_slow(EMPTY, everyday=["none pass a filter"]))
def test_an_empty_dataset_gives_nothing_or_is_refused(kind: str, tmp_path: Path) -> None:
    """G1."""

    def count_batches() -> None:
        session.report({"ids": [1 for _ in session.get_dataset_shard("train").iter_batches()]})

    dataset = EMPTY[kind](tmp_path)
    result = trainer(dataset, loop=count_batches, config=None, dataset_config=ALL).fit()
    assert [metrics["ids"] for metrics in result.rank_metrics.values()] == [[], []]
    with pytest.raises(DataError, match=r"'train'.*\b0 row.*\b2 workers.*uneven=\"all\""):
        trainer(dataset).fit()


def test_three_rows_for_four_workers() -> None:
    """G2."""
    assert given(paceline.data.range(3), workers=4, dataset_config=ALL) == [[0], [1], [2], []]
    with pytest.raises(DataError, match=r"\b3 row.*\b4 workers"):
        trainer(paceline.data.range(3), workers=4).fit()
    with pytest.raises(DataError, match=r"\b3 rows.*\b2 workers"):
        trainer(paceline.data.range(3), dataset_config=DataConfig(uneven="error")).fit()


# -- collectives --------------------------------------------------------------------------


def reduce_every_batch(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    shard = session.get_dataset_shard("train")
    total, batches = torch.zeros(1, dtype=torch.int64), 0
    for batch in shard.iter_torch_batches(batch_size=config["batch_size"]):
        part = batch["id"].sum().reshape(1)
        dist.all_reduce(part)
        total += part
        batches += 1
    session.report({"total": int(total), "batches": batches, "left_out": shard.rows_left_out(0)})


def test_equal_shares_let_a_collective_run_in_every_batch() -> None:
    """G3: 101 rows for 2 workers with batches of 10: uneven shares would be 51 and 50 rows, 6 batches and 5."""
    result = trainer(
        paceline.data.range(101), loop=reduce_every_batch, config={"batch_size": 10}, kind=TorchTrainer
    ).fit()
    check_run(result.path, result=result)
    first, second = result.rank_metrics.values()
    assert first == second
    assert first["batches"] == 5
    assert first["total"] == sum(range(101)) - sum(first["left_out"])
    assert len(first["left_out"]) == 1
    assert "leaves out 1 row" in " ".join(result.warnings)


# -- a corrupt row group ------------------------------------------------------------------


def damage_row_group(path: Path, number: int) -> None:
    """Overwrite the pages of a row group; the footer stays as it was."""
    column = pq.ParquetFile(path).metadata.row_group(number).column(0)
    start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """Ten files; row group 3 of file 7 cannot be decoded."""
    paths = parquet_files(tmp_path)
    damage_row_group(paths[7], 3)
    return str(tmp_path)


def test_a_corrupt_row_group_is_named_with_its_file_and_rank(damaged: str) -> None:
    """G4."""
    error = failure(paceline.data.read_parquet(damaged))
    assert error.root_cause is not None
    assert error.root_cause.rank == 1  # files 5 to 9 are rank 1's
    assert "part-07.parquet, row group 3" in str(error)
    assert 'on_error="skip"' in str(error)


def test_a_corrupt_row_group_is_named_where_all_rows_are_read_before_training(damaged: str) -> None:
    with pytest.raises(DataError, match=r"part-07\.parquet, row group 3"):
        trainer(paceline.data.read_parquet(damaged), dataset_config=DataConfig(shuffle="rows")).fit()


@pytest.mark.parametrize("shuffle", mostly_slow([None, "blocks", "rows"], everyday=[None]))
def test_skipped_rows_are_counted_in_the_warnings(damaged: str, shuffle: Any) -> None:
    """G4."""
    dataset = paceline.data.read_parquet(damaged, on_error="skip")
    result = trainer(dataset, dataset_config=DataConfig(uneven="all", shuffle=shuffle)).fit()
    seen = sorted(number for metrics in result.rank_metrics.values() for number in metrics["ids"])
    assert seen == [number for number in range(1000) if not 760 <= number < 780]
    (told,) = [warning for warning in result.warnings if "skipped" in warning]
    assert "part-07.parquet, row group 3" in told
    assert "20 rows" in told


# -- files that change --------------------------------------------------------------------


def change_then_read(config: dict[str, Any]) -> None:
    """The driver has listed the files; now something happens to one of them."""
    victim = Path(config["victim"])
    if Marks(config["marks"]).claim("change"):
        if config["how"] == "deleted":
            victim.unlink()
        elif config["how"] == "shorter":
            os.truncate(victim, victim.stat().st_size // 2)
        else:
            os.utime(victim, ns=(1, 1))
    session.report({"n": 1}, reduce={"n": "sum"})  # both ranks read what is there afterwards
    read_all(config)


@pytest.mark.parametrize("how", mostly_slow(["deleted", "shorter", "written again"], everyday=["written again"]))
def test_a_file_that_changed_since_it_was_listed_is_named(tmp_path: Path, how: str) -> None:
    """G6."""
    data = tmp_path / "data"
    data.mkdir()
    paths = parquet_files(data, files=4)
    dataset = paceline.data.read_parquet(str(data))
    config = {"victim": str(paths[3]), "how": how, "marks": str(tmp_path / "marks")}
    error = failure(dataset, loop=change_then_read, config=config)
    assert error.root_cause is not None
    assert error.root_cause.rank == 1
    assert "part-03.parquet" in str(error)
    assert ("deleted" if how == "deleted" else "changed") in str(error)


def test_a_path_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"nowhere\.parquet"):
        paceline.data.read_parquet(str(tmp_path / "nowhere.parquet"))
    with pytest.raises(DataNotFoundError, match=r"\*\.parquet"):
        paceline.data.read_parquet(str(tmp_path / "*.parquet"))


def test_files_with_other_columns_are_named_before_workers_start(tmp_path: Path, results_dir: Path) -> None:
    paths = parquet_files(tmp_path, files=3)
    pq.write_table(pa.table({"id": ["a", "b"]}), paths[1])
    with pytest.raises(DataError, match=r"part-01\.parquet.*'id'"):
        trainer(paceline.data.read_parquet(str(tmp_path))).fit()
    assert not list(results_dir.glob("*/*"))


# -- functions that fail where the rows are made ------------------------------------------


def fails_on_row_77(batch: dict[str, Any]) -> dict[str, Any]:
    if 77 in batch["id"]:
        raise ValueError("seventy-seven is not allowed")
    return batch


def returns_unequal_lengths(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "short": batch["id"][1:]}


def returns_nothing(batch: dict[str, Any]) -> None:
    return None


def test_a_function_that_raises_is_named_with_its_place_and_rank() -> None:
    def fail_on_77(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 77:
            raise ValueError("seventy-seven is not allowed")
        return row

    error = failure(paceline.data.range(100).map(fail_on_77))
    assert error.root_cause is not None
    assert error.root_cause.rank == 1
    assert "map(fail_on_77)" in str(error)
    assert "seventy-seven is not allowed" in str(error)
    assert "in fail_on_77" in error.root_cause.traceback  # the user's own line is in the stack
    assert "ValueError" in error.root_cause.traceback


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fails_on_row_77, "seventy-seven is not allowed"),
        (returns_unequal_lengths, "short"),
        (returns_nothing, "returns_nothing"),
    ],
)
def test_a_function_of_batches_that_does_wrong_is_named(function: Any, message: str, results_dir: Path) -> None:
    """How many rows it gives is not known before it has run: it fails in the pass that counts them, in the driver."""
    with pytest.raises(DataError, match=message) as caught:
        trainer(paceline.data.range(100).map_batches(function, batch_size=10)).fit()
    assert f"map_batches({function.__name__})" in str(caught.value)
    assert "'train'" in str(caught.value)
    assert not list(results_dir.glob("*/*"))
