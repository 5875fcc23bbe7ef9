"""Padded batches: positions in them, and what cannot be had of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline import data
from paceline.air import DatasetConfig
from paceline.air.errors import DataError
from paceline.data.ingest.prepare import prepare
from paceline.data.iterator import DataIterator


def padded(workers: int, dataset: Any = None) -> list[DataIterator]:
    config = DatasetConfig(split=True, uneven="pad_mask")
    rows = data.range(97) if dataset is None else dataset
    ready = prepare({"train": rows}, {"train": config}, None, workers).datasets["train"]
    return [DataIterator(ready, rank, workers) for rank in range(workers)]


def real(batch: dict[str, np.ndarray]) -> list[int]:
    return [int(row) for row in batch["id"][batch["__valid__"]]]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [None, 24])
@pytest.mark.parametrize("steps", [1, 4, 6])
def test_a_pass_is_taken_up_in_the_middle(steps: int, shuffle: int | None, workers: int) -> None:
    """By as many ranks as before, and by others; each row is handed out once, however much was padded."""
    before = padded(2)
    options: dict[str, Any] = {"batch_size": 8, "local_shuffle_buffer_size": shuffle}
    passes = [iter(shard.iter_batches(**options)) for shard in before]
    seen = [row for each in passes for _ in range(steps) for row in real(next(each))]
    states = [shard.state_dict() for shard in before]
    after = padded(workers)
    for shard in after:
        shard.load_state_dict(states)
    rest = [list(shard.iter_batches(**options)) for shard in after]
    assert len({len(each) for each in rest}) == 1, "equally many steps"
    assert sorted([*seen, *(row for each in rest for batch in each for row in real(batch))]) == list(range(97))
    assert {shard.epoch for shard in after} == {1}


def test_the_next_epoch_is_complete() -> None:
    for shard in padded(2):
        for _ in range(2):
            assert sum(batch["__valid__"].sum() for batch in shard.iter_batches(batch_size=8)) == shard.count()


def test_a_type_for_all_columns_leaves_the_mask_boolean() -> None:
    import torch

    batch = next(iter(padded(2)[1].iter_torch_batches(batch_size=64, dtypes=torch.float32)))
    assert (batch["id"].dtype, batch["__valid__"].dtype) == (torch.float32, torch.bool)
    assert int(batch["__valid__"].sum()) == 48
    assert len(batch["id"]) == 64


@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 8, "drop_last": True}])
def test_batches_that_are_not_filled_up_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="fills up batches"):
        list(padded(2)[0].iter_batches(**options))


@pytest.mark.parametrize("method", ["iter_rows", "to_torch"])
def test_forms_without_a_mask_are_refused(method: str) -> None:
    with pytest.raises(DataError, match=rf"{method}\(\) cannot be used with uneven='pad_mask'"):
        getattr(padded(2)[0], method)()


def test_the_name_of_the_mask_is_taken() -> None:
    rows = data.from_items([{"__valid__": 1}] * 3)
    with pytest.raises(DataError, match="rename it"):
        list(padded(2, rows)[0].iter_batches(batch_size=2))
