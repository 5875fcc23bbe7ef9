"""Shipped: pickled once, mapped by all, gone with its owner."""

from __future__ import annotations

import gc
import os
import pickle
from typing import Any

import numpy as np
import pytest

from paceline.air.errors import SerializationError
from paceline.engine.serialization import LARGE_BYTES, Shipped, dumps, loads, pickled
from tests.descriptors import open_files


def descriptors() -> list[str]:
    return [target for target in open_files() if "paceline-shipped" in target]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2]},
        b"x" * (2 * LARGE_BYTES),
        "ä" * LARGE_BYTES,
        [bytes([each]) * 1000 for each in range(256)] * 2,
    ],
)
def test_a_value_arrives_as_it_was(value: Any) -> None:
    shipped = Shipped(value, "it")
    for _ in range(2):
        assert loads(*pickled(shipped, "the task")) == value
    assert loads(dumps(shipped, "the task")) == value  # by value, where nothing can be attached


def test_arrays_arrive_in_shape_order_and_type() -> None:
    arrays = {
        "rows": np.arange(60_000.0).reshape(300, 200),
        "columns": np.asfortranarray(np.arange(60_000).reshape(300, 200)),
        "every other": np.arange(60_000)[::2],
        "none": np.zeros((0, 3)),
        "few": np.arange(5),
        "read only": np.frombuffer(b"\1" * 50_000, dtype=np.uint8),
    }
    shipped = Shipped(arrays, "arrays")
    sent = pickled(shipped, "the task")
    assert len(sent.content) < 1000
    received = loads(*sent)
    for name, array in arrays.items():
        np.testing.assert_array_equal(received[name], array)
        assert received[name].dtype == array.dtype
    assert received["columns"].flags.f_contiguous
    assert received["rows"].flags.writeable
    assert not received["read only"].flags.writeable


def test_a_writer_gets_its_own_copy() -> None:
    shipped = Shipped(np.zeros(100_000), "array")
    first, second = loads(*pickled(shipped, "the task")), loads(*pickled(shipped, "the task"))
    first[:] = 1
    assert not second.any()
    assert not shipped.value.any()
    assert not loads(*pickled(shipped, "the task")).any()


def test_the_memory_goes_with_the_last_who_has_it() -> None:
    gc.collect()
    before = len(descriptors())
    shipped = Shipped(np.ones(100_000), "array")
    received = loads(*pickled(shipped, "the task"))
    del shipped
    gc.collect()
    assert received.sum() == 100_000  # what is mapped stays
    del received
    gc.collect()
    assert len(descriptors()) == before


def test_it_is_pickled_when_it_is_first_needed_and_never_again() -> None:
    value = [1]
    shipped = Shipped(value, "it")
    value.append(2)
    assert pickle.loads(pickle.dumps(shipped)) == [1, 2]
    value.append(3)
    assert pickle.loads(pickle.dumps(shipped)) == [1, 2]


def test_what_cannot_travel_is_named() -> None:
    with open(os.devnull) as file, pytest.raises(SerializationError, match=r"the trainable\['log'\].*open file"):
        Shipped({"log": file}, "the trainable").pack()
