"""Dataset's methods that work on each block: what they give, in which batches, and what they ask of the source."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.block import Block, ReadRequest
from paceline.data.dataset_transforms import Transforms
from paceline.data.sources.computed import TableSource
from tests.data.transforming import chunks, column, dataset, rows, watched

if TYPE_CHECKING:
    pass


# -- map, flat_map, filter ------------------------------------------------------------------


def test_map_replaces_rows_and_keeps_their_number_and_order() -> None:
    mapped = dataset().map(
        lambda row, plus, *, times: {"x": (row["a"] + plus) * times}, fn_args=[1], fn_kwargs={"times": 2}
    )
    assert rows(mapped) == [{"x": (i + 1) * 2} for i in range(10)]
    assert [block.rows for block in mapped.plan.blocks()] == [6, 4]


def test_rows_have_python_values_and_tensor_cells_are_arrays() -> None:
    seen: list[dict[str, Any]] = []
    table = pa.table({"i": [1], "s": ["x"], "t": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((1, 2, 2)))})
    ds = Transforms(TableSource(table)).map(lambda row: seen.append(row) or {"t": row["t"] + row["i"]})  # type: ignore[func-returns-value]
    (chunk,) = chunks(ds)
    assert type(seen[0]["i"]) is int
    assert seen[0]["s"] == "x"
    assert seen[0]["t"].shape == (2, 2)
    assert chunk.column("t").to_numpy_ndarray().tolist() == [[[2.0, 2.0], [2.0, 2.0]]]


def test_flat_map_takes_lists_and_generators() -> None:
    def twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"x": row["a"]}
        yield {"x": -row["a"]}

    assert column(dataset(3).flat_map(twice), "x") == [0, 0, 1, -1, 2, -2]
    assert column(dataset(5).flat_map(lambda row: [row] * (row["a"] % 2)), "a") == [1, 3]


def test_filter_by_function_keeps_columns_and_types() -> None:
    kept = dataset().filter(lambda row: row["a"] % 4 == 1)
    assert rows(kept) == [{"a": i, "b": float(i), "c": f"c{i % 3}"} for i in (1, 5, 9)]
    assert kept.plan.schema() == dataset().plan.schema()
    nothing = dataset().filter(lambda row: False)
    assert rows(nothing) == []
    assert nothing.plan.schema().names == ["a", "b", "c"]


def test_filter_wants_a_function_or_an_expression() -> None:
    for arguments in ({}, {"fn": bool, "expr": "a > 1"}, {"expr": 3}, {"expr": "a > 1", "concurrency": 2}):
        with pytest.raises(ConfigError, match="filter"):
            dataset().filter(**arguments)
    with pytest.raises(ConfigError, match=r"filter\(expr='a > 1'\)"):
        dataset().filter("a > 1")  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [True, np.True_, np.array(True), np.array([True]), torch.tensor(True), 1])
def test_a_filter_takes_truth_values_of_all_libraries(answer: Any) -> None:
    assert data.range(5).filter(lambda row: answer).count() == 5


@pytest.mark.parametrize("answer", ["", 0.0, [], np.False_, None])
def test_a_filter_keeps_what_is_true_to_python(answer: Any) -> None:
    kept = data.range(5).filter(lambda row: answer if row["id"] % 2 else "yes")
    assert [row["id"] for row in kept.take_all()] == [0, 2, 4]


def test_a_filter_whose_answer_has_no_truth_value_is_rejected() -> None:
    with pytest.raises(DataError, match=r"row 0 of range\(5\).*True or False"):
        data.range(5).filter(lambda row: np.zeros(2)).take(1)


def test_a_filter_without_a_return_statement_causes_a_warning() -> None:
    def forgets(row: dict[str, Any]) -> None:
        row["id"] > 2  # noqa: B015

    with pytest.warns(UserWarning, match=r"forgets.*None.*return"):
        assert data.range(5).filter(forgets).take_all() == []


def test_rows_that_differ_in_their_columns_are_rejected_by_name() -> None:
    def odd(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "note": "odd"} if row["id"] % 2 else {"id": row["id"]}

    with pytest.raises(DataError, match=r"map\(odd\).*\['id'\] and \['id', 'note'\].*'note', put None"):
        data.range(5).map(odd).take_all()
    with pytest.raises(DataError, match=r"flat_map.*'note', put None"):
        data.range(5).flat_map(lambda row: [odd(row)]).take_all()
    swapped = data.range(2).map(lambda row: {"a": 1, "b": 2} if row["id"] else {"b": 4, "a": 3})
    assert swapped.take_all() == [{"b": 4, "a": 3}, {"b": 2, "a": 1}]


# -- map_batches ----------------------------------------------------------------------------


def sizes(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"a": batch["a"], "rows": np.full(len(batch["a"]), len(batch["a"]))}


@pytest.mark.parametrize("chunk_rows", [3, 7, 100])
def test_batches_are_whole_within_a_block_and_never_cross_blocks(chunk_rows: int) -> None:
    mapped = dataset(25, 15).map_batches(sizes, batch_size=6)
    table = pa.Table.from_batches(chunks(mapped, ReadRequest(chunk_rows=chunk_rows)))
    assert table["a"].to_pylist() == list(range(25))
    assert table["rows"].to_pylist() == [6] * 12 + [3] * 3 + [6] * 6 + [4] * 4


def test_batch_size_none_gives_whole_blocks() -> None:
    assert column(dataset(10, 6).map_batches(sizes, batch_size=None), "rows") == [6] * 6 + [4] * 4


def test_the_default_batch_is_a_dict_of_arrays_of_4096_rows() -> None:
    seen: list[Any] = []
    ds = Transforms(TableSource(pa.table({"a": np.arange(5000)}), 5000)).map_batches(lambda b: seen.append(b) or b)  # type: ignore[func-returns-value]
    chunks(ds)
    assert [len(batch["a"]) for batch in seen] == [4096, 904]
    assert all(type(batch) is dict and isinstance(batch["a"], np.ndarray) for batch in seen)


def test_a_batch_can_be_written_to_without_changing_the_source() -> None:
    def change(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["a"] += 100
        batch["c"][:] = "new"
        return batch

    ds = dataset()
    assert column(ds.map_batches(change), "a") == list(range(100, 110))
    assert column(ds, "a") == list(range(10))
    assert column(ds, "c")[:2] == ["c0", "c1"]


def test_a_zero_copy_batch_cannot_be_written_to() -> None:
    flags: list[bool] = []
    ds = dataset().map_batches(lambda batch: flags.append(batch["a"].flags.writeable) or batch, zero_copy_batch=True)  # type: ignore[func-returns-value]
    assert column(ds, "a") == list(range(10))
    assert not any(flags)


def test_columns_with_nulls_lists_and_tensors_in_batches() -> None:
    table = pa.table(
        {
            "n": [1, None, 3, 4],
            "l": [[1, 2], [3], [], [4, 5]],
            "t": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8.0).reshape(4, 2)),
        }
    )
    seen: list[Any] = []

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch)
        return {"sum": batch["t"].sum(axis=1), "t": batch["t"] * 2}

    result = pa.Table.from_batches(chunks(Transforms(TableSource(table, 4)).map_batches(note, batch_size=2)))
    assert np.isnan(seen[0]["n"][1])
    assert seen[1]["n"].dtype == np.int64
    assert seen[1]["t"].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert result["sum"].to_pylist() == [1.0, 5.0, 9.0, 13.0]
    assert result["t"].combine_chunks().to_numpy_ndarray().shape == (4, 2)


@pytest.mark.parametrize("batch_format", ["pandas", "pyarrow", None, "numpy"])
def test_any_format_in_and_any_out(batch_format: str | None) -> None:
    seen: list[str] = []

    def to_table(batch: Any) -> Any:
        seen.append(type(batch).__name__)
        return pa.table({"x": pa.array(batch["a"])}) if not isinstance(batch, pa.Table) else batch.to_pandas()[["a"]]

    result = chunks(dataset().map_batches(to_table, batch_format=batch_format))
    assert set(seen) == {{"pandas": "DataFrame", "numpy": "dict"}.get(str(batch_format), "Table")}
    assert [value for chunk in result for value in chunk.column(0).to_pylist()] == list(range(10))


def test_a_function_may_yield_several_batches_or_none() -> None:
    def split(batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        for value in batch["a"]:
            if value % 2:
                yield {"x": np.array([value, value])}

    assert column(dataset().map_batches(split), "x") == [1, 1, 3, 3, 5, 5, 7, 7, 9, 9]


def test_batches_that_come_back_empty_are_no_rows_and_keep_their_types() -> None:
    def large(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: values[batch["a"] > 7] for name, values in batch.items()}

    assert column(dataset().map_batches(large), "c") == ["c2", "c0"]
    nothing = dataset().map_batches(lambda batch: {name: values[:0] for name, values in batch.items()})
    assert rows(nothing) == []
    assert nothing.plan.schema() == dataset().plan.schema()


def test_only_a_promise_makes_the_row_count_known() -> None:
    assert not dataset().map_batches(sizes).plan.knows_counts
    assert dataset().map_batches(sizes, keeps_row_count=True).plan.row_counts() == [6, 4]


def test_nothing_runs_before_rows_are_asked_for() -> None:
    calls: list[int] = []
    ds = dataset().map(lambda row: calls.append(1) or row).filter(lambda row: True).map_batches(lambda batch: batch)  # type: ignore[func-returns-value]
    ds.select_columns(["a"]).rename_columns({"a": "x"}).random_sample(0.5)
    assert calls == []


def test_safe_changes_of_type_between_batches_are_evened_out() -> None:
    def narrower_later(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": batch["a"].astype(np.int64 if batch["a"][0] == 0 else np.int32)}

    table = pa.Table.from_batches(chunks(dataset().map_batches(narrower_later, batch_size=3)))
    assert table.schema.field("x").type == pa.int64()


# -- classes ----------------------------------------------------------------------------------


class Adder:
    made = 0

    def __init__(self, plus: int, *, times: int = 1) -> None:
        type(self).made += 1
        self.plus, self.times = plus, times

    def __call__(self, batch: dict[str, Any], extra: int = 0) -> dict[str, Any]:
        return {"x": (batch["a"] + self.plus + extra) * self.times}


def test_a_class_is_made_once_whatever_the_number_of_blocks_and_epochs() -> None:
    Adder.made = 0
    ds = dataset(10, 3).map_batches(
        Adder, fn_constructor_args=[1], fn_constructor_kwargs={"times": 2}, fn_kwargs={"extra": 3}
    )
    for _ in range(2):
        assert column(ds, "x") == [(i + 4) * 2 for i in range(10)]
        assert column(Transforms(ds.plan.for_epoch(1)), "x")
    assert Adder.made == 1
    copied = Transforms(pickle.loads(pickle.dumps(ds.plan)))
    assert column(copied, "x") == column(ds, "x")
    assert Adder.made == 2


def test_classes_serve_rows_too() -> None:
    assert column(dataset(3).map(Adder, fn_constructor_args=[1]), "x") == [1, 2, 3]
    assert column(dataset(3).map(Adder(2)), "x") == [2, 3, 4]
    assert column(dataset(3).map(functools.partial(Adder(2), extra=1)), "x") == [3, 4, 5]


# -- columns ----------------------------------------------------------------------------------


def test_add_column_gets_a_frame_and_adds_or_replaces() -> None:
    ds = dataset(4)
    assert rows(ds.add_column("d", lambda frame: frame["a"] + frame["b"]))[3] == {"a": 3, "b": 3.0, "c": "c0", "d": 6.0}
    replaced = ds.add_column("b", lambda frame: frame["c"].str.upper())
    assert replaced.plan.schema().names == ["a", "b", "c"]
    assert column(replaced, "b") == ["C0", "C1", "C2", "C0"]
    assert column(ds.add_column("one", lambda frame: 1), "one") == [1, 1, 1, 1]
    assert [block.rows for block in replaced.plan.blocks()] == [4]


def test_a_column_may_be_one_number_of_numpy() -> None:
    assert data.range(2).add_column("x", lambda frame: np.float32(1.5)).take_all() == [
        {"id": 0, "x": 1.5},
        {"id": 1, "x": 1.5},
    ]


def test_work_on_rows_starts_where_it_is_wanted() -> None:
    source, ds = watched()
    (chunk,) = chunks(ds.map(lambda row: {"x": row["a"] * 10}), ReadRequest(start=1, stop=2))
    assert chunk.to_pylist() == [{"x": 20}]
    assert (source.requests[-1].start, source.requests[-1].stop) == (1, 2)
    (chunk,) = chunks(ds.map_batches(lambda batch: {"x": batch["a"] * 10}), ReadRequest(start=1, stop=2))
    assert chunk.to_pylist() == [{"x": 20}]


# -- settings ---------------------------------------------------------------------------------


def test_resources_of_a_scheduler_have_no_effect_and_say_so() -> None:
    with pytest.warns(UserWarning, match="num_gpus") as warned:
        ds = dataset().map_batches(sizes, num_gpus=1)
    assert warned[0].filename == __file__
    assert column(ds, "a") == list(range(10))
    dataset().map_batches(sizes, num_cpus=None)
    with pytest.raises(TypeError, match="'batchsize'"):
        dataset().map_batches(sizes, batchsize=3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"fn": 3}, "function or a class"),
        ({"fn": Block}, "Block.*__call__"),
        ({"fn": sizes, "fn_constructor_args": [1]}, "fn_constructor_args.*sizes"),
        ({"fn": sizes, "batch_size": 0}, "batch_size.*0"),
        ({"fn": sizes, "batch_size": 2.5}, r"batch_size.*2\.5"),
        ({"fn": sizes, "batch_format": "polars"}, "batch_format"),
        ({"fn": sizes, "zero_copy_batch": 1}, "zero_copy_batch"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        dataset().map_batches(**arguments)


def test_async_functions_are_refused() -> None:
    async def later(batch: Any) -> Any:
        return batch

    with pytest.raises(ConfigError, match=r"later.*async"):
        dataset().map_batches(later)
