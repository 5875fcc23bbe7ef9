"""Results of small batches are joined without being changed, lost, or kept back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline.air.errors import DataError
from paceline.data.block import ReadRequest
from paceline.data.dataset_transforms import Transforms
from paceline.data.operations import work
from paceline.data.operations.gathering import Gathering
from paceline.data.sources.computed import TableSource

ROWS = 100


@pytest.fixture(autouse=True)
def every_function_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "QUICK_S", float("inf"))


def chunks(function: Any, **settings: Any) -> Iterator[Any]:
    source = TableSource(pa.table({"a": np.arange(ROWS), "b": np.arange(ROWS) / 2}), ROWS)
    return Transforms(source).map_batches(function, batch_size=10, **settings).plan.read(0, ReadRequest())


def values(results: Iterator[Any], name: str) -> list[Any]:
    return [value for chunk in results for value in chunk.column(name).to_pylist()]


def test_results_of_quick_functions_come_in_one_chunk() -> None:
    (chunk,) = chunks(lambda batch: {"x": batch["a"] * 2, "t": np.stack([batch["b"], batch["b"]], axis=1)})
    assert chunk.column("x").to_pylist() == list(range(0, 2 * ROWS, 2))
    assert chunk.column("t").to_numpy_ndarray()[:, 1].tolist() == [i / 2 for i in range(ROWS)]


def test_results_of_slow_functions_are_passed_on_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "QUICK_S", 0.0)
    calls: list[int] = []

    def noted(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        calls.append(len(batch["a"]))
        return batch

    results = chunks(noted)
    assert next(results).num_rows == 10
    assert len(calls) == 1
    assert values(results, "a") == list(range(10, ROWS))


def test_a_function_may_use_its_memory_again() -> None:
    class Reusing:
        def __init__(self) -> None:
            self.buffer = np.empty(10)

        def __call__(self, batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
            for plus in (0, 1000):
                np.add(batch["a"], plus, out=self.buffer)
                yield {"x": self.buffer}

    expected = [start + i + plus for start in range(0, ROWS, 10) for plus in (0, 1000) for i in range(10)]
    results = list(chunks(Reusing))
    assert values(iter(results), "x") == expected


def test_more_or_fewer_rows_than_came_in() -> None:
    assert values(chunks(lambda batch: {"x": batch["a"][batch["a"] % 3 == 0]}), "x") == list(range(0, ROWS, 3))
    assert values(chunks(lambda batch: {"x": np.repeat(batch["a"], 3)}), "x") == [i // 3 for i in range(3 * ROWS)]


def test_no_rows_at_all_keep_their_types() -> None:
    (chunk,) = chunks(lambda batch: {"x": batch["b"][:0]})
    assert (chunk.num_rows, chunk.schema.field("x").type) == (0, pa.float64())


def test_batches_of_another_kind_in_between_stay_in_order() -> None:
    def changing(batch: dict[str, np.ndarray]) -> Any:
        if batch["a"][0] == 30:
            return pa.table({"a": batch["a"]})
        if batch["a"][0] == 50:
            return {"a": batch["a"].astype(np.int32)}
        return {"a": batch["a"].tolist()} if batch["a"][0] == 70 else {"a": batch["a"]}

    results = list(chunks(changing))
    assert values(iter(results), "a") == list(range(ROWS))
    assert {chunk.schema.field("a").type for chunk in results} == {pa.int64()}


def test_what_came_before_an_error_is_not_lost() -> None:
    def broken(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if batch["a"][0] == 40:
            raise RuntimeError("enough")
        return batch

    results = chunks(broken)
    assert next(results).column("a").to_pylist() == list(range(40))
    with pytest.raises(DataError, match=r"rows 40 to 49 of .*RuntimeError: enough"):
        next(results)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda batch: {"x": batch["a"], "y": batch["a"][1:]}, "'y': 9"),
        (lambda batch: {1: batch["a"]}, "1"),
        (lambda batch: {"x": np.float64(1)}, "'x'"),
        (lambda batch: {"x": batch["a"][1:]}, "9 rows of 10.*rows 0 to 9"),
    ],
)
def test_mistakes_are_found_as_ever(function: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        list(chunks(function, keeps_row_count=True))


def test_what_is_gathered_is_the_takers_own() -> None:
    gathering = Gathering(4)
    assert gathering.take() is None
    assert gathering.add({"x": np.array([1, 2])}) == 2
    assert gathering.add({"x": np.array([1.5])}) is None  # another type
    assert gathering.add({"y": np.array([3])}) is None
    assert gathering.add({"x": np.array([3, 4, 5])}) is None  # no room
    taken = gathering.take()
    assert gathering.add({"x": np.array([7, 8, 9])}) == 3
    assert taken is not None
    assert taken["x"].tolist() == [1, 2]
