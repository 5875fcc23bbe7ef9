"""Datasets of torch: items are asked for when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data import from_objects
from paceline.data.block import ReadRequest
from paceline.data.formats import to_rows
from tests.data.reading import dataset_column, dataset_rows, plan_of


class Squares(torch.utils.data.Dataset[Any]):
    def __init__(self, item: Any, rows: int = 2500) -> None:
        self.item = item
        self.rows = rows
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.item(index)


def test_torch_items_are_asked_for_when_they_are_read() -> None:
    squares = Squares(lambda index: {"x": torch.tensor([index, index**2]), "n": index})
    dataset = from_objects.from_torch(squares)
    assert squares.asked == []
    source = plan_of(dataset)
    assert [block.rows for block in source.blocks()] == [1024, 1024, 452]
    rows = [row for chunk in source.read(1, ReadRequest(start=10, stop=12)) for row in to_rows(chunk)]
    assert [row["n"] for row in rows] == [1034, 1035]
    assert rows[1]["x"].tolist() == [1035, 1035**2]
    assert set(squares.asked) == {*range(16), 1034, 1035}  # the first few tell the schema


@pytest.mark.parametrize(
    ("item", "row"),
    [
        (lambda index: index, {"item": 1}),
        (lambda index: torch.tensor(index), {"item": 1}),
        (lambda index: (float(index), str(index)), {"item_0": 1.0, "item_1": "1"}),
    ],
)
def test_names_of_torch_columns(item: Any, row: dict[str, Any]) -> None:
    assert dataset_rows(from_objects.from_torch(Squares(item, rows=3)))[1] == row


def test_many_torch_items_at_once() -> None:
    class Batched(Squares):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [10 * index for index in indices]

    assert dataset_column(from_objects.from_torch(Batched(None, rows=3)), "item") == [0, 10, 20]


def test_a_torch_item_that_fails_or_differs_is_named() -> None:
    def item(index: int) -> Any:
        if index == 21:
            raise OSError("disk gone")
        return index

    with pytest.raises(DataError, match=r"Squares.*item 21\b.*OSError: disk gone"):
        dataset_rows(from_objects.from_torch(Squares(item, rows=30)))
    with pytest.raises(DataError, match=r"Squares.*items 16 to 19.*'item'.*string"):
        dataset_rows(
            from_objects.from_torch(Squares(lambda index: index if index < 16 else "x", rows=20)), chunk_rows=16
        )


def test_iterable_torch_datasets_are_refused_with_a_way_out() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

        def __len__(self) -> int:
            return 2

    with pytest.raises(ConfigError, match=r"from_items\(list\(dataset\)\)"):
        from_objects.from_torch(Stream())


def test_samples_of_different_length_are_refused() -> None:
    class Uneven(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return (index,) if index == 1 else (index, index)

    with pytest.raises(DataError, match=r"Uneven.*item 1.*1 values.*item 0.*2"):
        data.from_torch(Uneven()).take(3)
