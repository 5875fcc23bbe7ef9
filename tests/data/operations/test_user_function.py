"""Functions that raise or return what cannot be used: the error names the function, the rows and the column."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.block import ReadRequest
from paceline.data.dataset_transforms import Transforms
from paceline.data.sources.computed import TableSource

BLOCK_ROWS = 6


def dataset() -> Transforms:
    return Transforms(TableSource(pa.table({"a": range(10), "c": ["x"] * 10}), BLOCK_ROWS))


def consume(ds: Transforms) -> list[dict[str, Any]]:
    plan = ds.plan
    chunks = [chunk for block in range(len(plan.blocks())) for chunk in plan.read(block, ReadRequest())]
    return [row for chunk in chunks for row in chunk.to_pylist()]


def message_of(ds: Transforms) -> str:
    with pytest.raises(DataError) as caught:
        consume(ds)
    return str(caught.value)


def origin(function: Callable[..., Any]) -> str:
    return f"{__file__}:{inspect.getsourcelines(function)[1]}"


def test_an_exception_in_a_batch_function_names_function_place_and_itself() -> None:
    def broken(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if batch["a"][0] == 6:
            raise RuntimeError("no such device")
        return batch

    with pytest.raises(DataError) as caught:
        consume(dataset().map_batches(broken))
    message = str(caught.value)
    second_block = dataset().plan.blocks()[1].name
    assert f"map_batches(broken) at {origin(broken)} " in message
    assert f"rows 0 to 3 of {second_block}" in message
    assert "RuntimeError: no such device" in message
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_missing_key_is_answered_with_the_columns() -> None:
    def misspelt(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["aa"]}

    message = message_of(dataset().map(misspelt))
    assert f"map(misspelt) at {origin(misspelt)} " in message
    assert "row 0 of " in message
    assert "KeyError: 'aa'" in message
    assert "['a', 'c']" in message


@pytest.mark.parametrize("method", ["map", "filter", "flat_map"])
def test_row_functions_name_the_row(method: str) -> None:
    def broken(row: dict[str, Any]) -> Any:
        return [{"map": row, "filter": True, "flat_map": [row]}[method]][row["a"] // 4]

    message = message_of(getattr(dataset(), method)(broken))
    assert f"{method}(broken)" in message
    assert "row 4 of" in message
    assert "IndexError" in message


def test_an_exception_in_the_middle_of_a_generator() -> None:
    def broken(batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        yield batch
        raise ZeroDivisionError("later")

    assert "ZeroDivisionError: later" in message_of(dataset().map_batches(broken))
    assert "row 0 of" in message_of(dataset().flat_map(lambda row: ({"x": 1 / 0} for _ in range(2))))


def test_an_exception_in_a_constructor() -> None:
    class Broken:
        def __init__(self) -> None:
            raise OSError("no weights")

        def __call__(self, batch: Any) -> Any:
            return batch

    message = message_of(dataset().map_batches(Broken))
    assert "map_batches(Broken)" in message
    assert "OSError: no weights" in message


def test_an_exception_that_cannot_be_shown() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    def broken(row: Any) -> Any:
        raise OddError

    assert "OddError" in message_of(dataset().map(broken))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda batch: None, "None"),
        (lambda batch: 3, "3 (int)"),
        (lambda batch: [batch], "list"),
        (lambda batch: {}, "no columns"),
        (lambda batch: {"x": [1, 2], "y": [1]}, "'y': 1"),
        (lambda batch: {"x": 1}, "'x'"),
        (lambda batch: {1: batch["a"]}, "1 (int)"),
        (lambda batch: {"x": [1, "one"]}, "'x'"),
    ],
)
def test_batches_that_cannot_be_used(function: Any, says: str) -> None:
    message = message_of(dataset().map_batches(function))
    assert f"map_batches(<lambda>) at {__file__}:" in message
    assert says in message
    assert "rows 0 to 5 of" in message


@pytest.mark.parametrize(
    ("method", "function", "says"),
    [
        ("map", lambda row: None, "returned None on row 0"),
        ("map", lambda row: [row], "returned a list on row 0"),
        ("map", lambda row: {"x": 1 if row["a"] < 2 else "one"}, "'x'"),
        ("flat_map", lambda row: row, "returned a dict on row 0"),
        ("flat_map", lambda row: None, "returned None on row 0"),
        ("flat_map", lambda row: [row, 3], "returned a int on row 0"),
        ("filter", lambda row: np.array([1, 2]), "returned array([1, 2]) (ndarray) on row 0"),
    ],
)
def test_rows_that_cannot_be_used(method: str, function: Any, says: str) -> None:
    message = message_of(getattr(dataset(), method)(function))
    assert f"{method}(<lambda>) at {__file__}:" in message
    assert says in message


@pytest.mark.parametrize(
    ("later", "says"),
    [
        (lambda batch: {"x": batch["a"] + 0.5}, "'x'"),
        (lambda batch: {"x": batch["a"], "y": batch["a"]}, "'y'"),
        (lambda batch: {"y": batch["a"]}, "'x'"),
    ],
)
def test_columns_that_change_between_batches(later: Any, says: str) -> None:
    def changing(batch: dict[str, np.ndarray]) -> Any:
        return {"x": batch["a"]} if batch["a"][0] < BLOCK_ROWS else later(batch)

    message = message_of(dataset().map_batches(changing))
    assert f"map_batches(changing) at {origin(changing)}" in message
    assert says in message
    assert dataset().plan.blocks()[1].name in message


def test_a_promise_about_the_number_of_rows_is_checked() -> None:
    def half(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"a": batch["a"][::2]}

    message = message_of(dataset().map_batches(half, keeps_row_count=True))
    assert "3 rows of 6" in message
    assert "keeps_row_count=True" in message


@pytest.mark.parametrize(
    ("values", "says"),
    [(lambda frame: [1, 2], "2 values for 6 rows of column 'd'"), (lambda frame: frame["zz"], "KeyError: 'zz'")],
)
def test_columns_that_cannot_be_added(values: Any, says: str) -> None:
    message = message_of(dataset().add_column("d", values))
    assert "add_column(<lambda>)" in message
    assert says in message


def test_columns_that_a_function_did_not_make() -> None:
    def made() -> Transforms:
        return dataset().map_batches(lambda batch: {"value": batch["a"]})

    assert "there is no column 'values': did you mean 'value'?" in message_of(made().select_columns("values"))
    assert "drop_columns(zz) on" in message_of(made().drop_columns("zz"))
    assert "there is no column 'zz'" in message_of(made().rename_columns({"zz": "y"}))
    assert "two columns named 'b'" in message_of(
        dataset().map_batches(lambda batch: {"a": batch["a"], "b": batch["a"]}).rename_columns({"a": "b"})
    )
    assert "zz" in message_of(made().filter(expr="zz > 1"))
    seen = made()
    consume(seen)
    with pytest.raises(ConfigError, match="'zz'"):
        seen.select_columns("zz")  # after a pass it is known at once


class Adding:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"] + self.number}


def test_a_function_written_for_frames_is_told_of_the_batch_format() -> None:
    for function in (lambda batch: batch.assign(y=1), lambda batch: {"y": batch["id"].fillna(0)}):
        with pytest.raises(DataError, match=r'dict of numpy arrays.*batch_format="pandas"'):
            data.range(5).map_batches(function).take(1)
    with pytest.raises(DataError, match=r'dict.*row\["x"\]'):
        data.range(5).map(lambda row: {"y": row.id}).take(1)


def test_places_in_memory_read_well() -> None:
    def fails_at_1030(batch: dict[str, Any]) -> Any:
        if batch["item"][0] >= 1024:
            raise ValueError("no")
        return batch

    with pytest.raises(DataError, match=r"rows 0 to 9 of .*block 1 \(rows 1024 to 2047\).*ValueError"):
        data.from_items(list(range(3000))).map_batches(fails_at_1030, batch_size=10).count()
    with pytest.raises(DataError, match=r"rows 0 to 2 of in-memory table\b.*ZeroDivisionError"):
        data.from_items([1, 2, 3]).map_batches(lambda batch: 1 / 0).count()


@pytest.mark.parametrize(
    ("function", "arguments", "says"),
    [
        (lambda row: row, {"fn_args": 5}, "map.*fn_args.*5.*list or tuple"),
        (Adding, {"fn_constructor_args": 5}, "map.*fn_constructor_args.*5.*list"),
        (lambda row: row, {"fn_kwargs": [1]}, "map.*fn_kwargs.*dict"),
    ],
)
def test_arguments_for_a_function_come_as_a_list_or_a_dict(function: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        data.range(5).map(function, **arguments)
