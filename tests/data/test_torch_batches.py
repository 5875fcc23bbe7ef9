"""Torch tensors from chunks: shared or copied memory, types, refusals, devices, features and labels."""

from __future__ import annotations

import decimal
import gc
import multiprocessing
from collections import namedtuple
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.tensors import ragged_array, tensor_array
from paceline.data.torch_batches import split, to_device, torch_columns


def _numbers(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "x": pa.array(np.arange(rows, dtype=np.float32)),
            "n": pa.array(np.arange(rows)),
            "b": pa.array(np.arange(rows) % 2 == 0),
            "image": tensor_array(np.arange(rows * 4, dtype=np.uint8).reshape(rows, 2, 2)),
        }
    )


def test_columns_become_tensors_of_their_types() -> None:
    tensors = torch_columns(_numbers(5).slice(1, 3))
    assert tensors["x"].tolist() == [1.0, 2.0, 3.0]
    assert tensors["n"].dtype == torch.int64
    assert tensors["b"].tolist() == [False, True, False]
    assert tensors["image"].dtype == torch.uint8
    assert tensors["image"].shape == (3, 2, 2)
    assert tensors["image"][0].tolist() == [[4, 5], [6, 7]]


@pytest.mark.filterwarnings("error")
def test_without_copy_memory_is_shared_and_outlives_the_chunk() -> None:
    chunk = pa.record_batch({"x": pa.array([0.0] * 1000)})
    tensor = torch_columns(chunk, copy=False)["x"]
    tensor[3] = 7
    assert chunk.column("x")[3].as_py() == 7.0
    del chunk
    assert tensor.sum() == 7


def test_with_copy_writing_does_not_reach_the_chunk() -> None:
    chunk = _numbers(4)
    for tensor in torch_columns(chunk, copy=True).values():
        tensor.zero_()
    assert chunk.column("n").to_pylist() == [0, 1, 2, 3]
    assert chunk.column("b").to_pylist() == [True, False, True, False]


def test_dtypes_for_all_columns_or_by_name() -> None:
    chunk = _numbers(3)
    assert {tensor.dtype for tensor in torch_columns(chunk, torch.float64).values()} == {torch.float64}
    tensors = torch_columns(chunk, {"n": torch.int32, "x": torch.bfloat16})
    assert (tensors["n"].dtype, tensors["x"].dtype, tensors["b"].dtype) == (torch.int32, torch.bfloat16, torch.bool)
    with pytest.raises(ConfigError, match=r"'z'.*\['x', 'n', 'b', 'image'\]"):
        torch_columns(chunk, {"z": torch.int32})


@pytest.mark.parametrize("dtypes", [None, torch.bfloat16, {"n": torch.float32}])
def test_split_gives_the_same_as_converting_every_batch(dtypes: Any) -> None:
    chunk = _numbers(10)
    batches = list(split(chunk, 4, dtypes, copy=True))
    assert [len(batch["n"]) for batch in batches] == [4, 4, 2]
    for position, batch in enumerate(batches):
        for name, tensor in torch_columns(chunk.slice(position * 4, 4), dtypes).items():
            assert batch[name].dtype == tensor.dtype
            assert torch.equal(batch[name], tensor)


def test_batches_of_one_chunk_do_not_share_a_history() -> None:
    weight = torch.ones(2, requires_grad=True)
    first, second = split(pa.record_batch({"x": pa.array([1.0, 2.0, 3.0, 4.0], pa.float32())}), 2)
    first["x"].mul_(weight)
    assert first["x"].requires_grad
    assert not second["x"].requires_grad
    assert second["x"].tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("column", "dtype", "values"),
    [
        (pa.array([1, None]), torch.float64, [1.0, None]),
        (pa.array([1, 2], pa.uint16()), torch.int32, [1, 2]),
        (pa.array([1, 2**32 - 1], pa.uint32()), torch.int64, [1, 2**32 - 1]),
        (pa.array([decimal.Decimal("1.5")]), torch.float64, [1.5]),
        (pa.array([[1, 2], [3, 4]]), torch.int64, [[1, 2], [3, 4]]),
        (pa.array([1, 2, 1]).dictionary_encode(), torch.int64, [1, 2, 1]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_types_that_torch_lacks(column: pa.Array, dtype: torch.dtype, values: list[Any]) -> None:
    tensor = torch_columns(pa.record_batch({"a": column}))["a"]
    assert tensor.dtype == dtype
    assert [None if value != value else value for value in tensor.tolist()] == values


@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        (pa.array(["x"]), "Encode"),
        (pa.array([["x"]]), "Encode"),
        (pa.array([{"x": 1}]), "Encode"),
        (pa.array([1], pa.timestamp("s")), "numbers"),
        (pa.array([True, None]), "Fill"),
        (pa.array([[1], [2, 3]]), "Pad"),
        (ragged_array([np.ones(1), np.ones(2)]), "Pad"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_columns_that_are_no_tensors_are_named_with_a_remedy(column: pa.Array, remedy: str) -> None:
    with pytest.raises(DataError, match=rf"'a'.*{remedy}.*collate_fn"):
        torch_columns(pa.record_batch({"a": column}))


def test_nulls_do_not_silently_become_integers() -> None:
    chunk = pa.record_batch({"a": pa.array([1, None])})
    with pytest.raises(DataError, match=r"'a'.*nulls.*torch\.int64"):
        torch_columns(chunk, torch.int64)


def test_batches_without_rows() -> None:
    assert list(split(_numbers(0), 4)) == []
    assert torch_columns(_numbers(0))["image"].shape == (0, 2, 2)


Pair = namedtuple("Pair", ["first", "second"])


def test_everything_in_a_batch_goes_to_the_device() -> None:
    batch = {"a": torch.ones(1), "b": [torch.ones(2), (torch.ones(3), "text")], "c": Pair(torch.ones(1), 2)}
    moved = to_device(batch, "meta")
    assert moved["a"].device.type == moved["b"][0].device.type == moved["b"][1][0].device.type == "meta"
    assert moved["b"][1][1] == "text"
    assert isinstance(moved["c"], Pair)
    assert moved["c"].first.device.type == "meta"


def test_a_worker_uses_the_device_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"a": torch.ones(1)}
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    assert to_device(batch)["a"].device.type == "meta"
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert to_device(batch) is batch
    assert to_device(batch, None) is batch


@pytest.mark.parametrize("dtype", [torch.float32, "float32", "torch.float32", np.float32, np.dtype("float32"), "f4"])
def test_types_for_torch_in_all_their_spellings(dtype: Any) -> None:
    assert next(iter(data.range(5).iter_torch_batches(dtypes=dtype)))["id"].dtype is torch.float32
    assert next(iter(data.range(5).iter_torch_batches(dtypes={"id": dtype})))["id"].dtype is torch.float32
    features, _ = next(iter(data.range(5).to_torch(feature_column_dtypes=dtype)))
    assert features.dtype is torch.float32


def test_rows_are_refused_where_each_process_of_a_data_loader_would_give_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = data.range(20).to_torch(batch_size=5)
    loader = torch.utils.data.DataLoader(rows, batch_size=None)
    assert sum(len(features) for features, _ in loader) == 20
    monkeypatch.setattr(torch.utils.data, "get_worker_info", object)  # as in a process of a loader
    with pytest.raises(DataError, match="num_workers=0"):
        list(rows)


@pytest.mark.slow  # torch waits 5 s for a process whose dataset failed
def test_the_refusal_arrives_from_a_process_of_a_data_loader() -> None:
    rows = data.range(20).to_torch(batch_size=5)
    with pytest.raises(DataError, match="num_workers=0"):
        list(torch.utils.data.DataLoader(rows, batch_size=None, num_workers=1))
    gc.collect()  # the loader ends its process when it goes
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"collate_fn": 3}, "collate_fn.*3.*function"),
        ({"dtypes": "float33"}, r"dtypes.*'float33'.*torch\.float32"),
        ({"dtypes": {"id": str}}, r"dtypes\['id'\].*torch\.float32"),
    ],
)
def test_arguments_of_iter_torch_batches_that_cannot_work(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        data.range(5).iter_torch_batches(**arguments)
