"""What Dataset and DataIterator have in common: batches, rows, and looking at a few."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import data
from paceline.air.errors import ConfigError


def test_an_exception_of_collate_fn_says_where_it_was() -> None:
    def broken(batch: dict[str, Any]) -> Any:
        return batch["x"]

    for batches in (
        data.range(5).iter_torch_batches(collate_fn=broken),
        data.range(5).iter_batches(_collate_fn=broken),
    ):
        with pytest.raises(KeyError) as caught:
            next(iter(batches))
        (note,) = caught.value.__notes__
        assert "collate_fn=" in note
        assert "broken" in note
        assert "dict of numpy arrays: ['id']" in note


def test_fewer_than_no_rows_cannot_be_taken() -> None:
    with pytest.raises(ConfigError, match=r"limit.*-1"):
        data.range(3).take(-1)
