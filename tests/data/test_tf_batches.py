"""TensorFlow tensors from chunks; what needs no TensorFlow is tested without it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from paceline.air.errors import ConfigError, DataError
from paceline.data.tensors import tensor_array
from paceline.data.tf_batches import column_values, tensor_signature, tf_columns, to_tf_dataset

CHUNK = pa.record_batch(
    {
        "n": pa.array([1, 2], pa.int32()),
        "s": pa.array(["a", "b"]).dictionary_encode(),
        "image": tensor_array(np.zeros((2, 3, 4), dtype=np.uint8)),
        "ids": pa.array([[1, 2], [3, 4]]),
        "when": pa.array([1, 2], pa.timestamp("s")),
    }
)


def test_signatures_come_from_the_schema() -> None:
    schema = CHUNK.schema
    assert tensor_signature(schema, "n") == ((None,), np.dtype(np.int32))
    assert tensor_signature(schema, "s") == ((None,), "string")
    assert tensor_signature(schema, "image") == ((None, 3, 4), np.dtype(np.uint8))
    assert tensor_signature(schema, "ids") == ((None, None), np.dtype(np.int64))
    assert tensor_signature(pa.schema([("f", pa.list_(pa.bool_(), 5))]), "f") == ((None, 5), np.dtype(bool))
    assert tensor_signature(pa.schema([("d", pa.decimal128(5, 2))]), "d") == ((None,), np.dtype(np.float64))


def test_columns_that_have_no_signature_are_named() -> None:
    with pytest.raises(DataError, match="Column 'when'"):
        tensor_signature(CHUNK.schema, "when")
    with pytest.raises(DataError, match="Column 'c'"):
        tensor_signature(pa.schema([("c", pa.struct([("a", pa.int64())]))]), "c")
    with pytest.raises(ConfigError, match="no column 'z'"):
        tensor_signature(CHUNK.schema, "z")


def test_values_keep_strings() -> None:
    assert column_values(CHUNK.column("s"), "s").tolist() == ["a", "b"]
    assert column_values(pa.array([b"\xff"]), "s").tolist() == [b"\xff"]
    assert column_values(CHUNK.column("ids"), "ids").shape == (2, 2)
    with pytest.raises(DataError, match=r"Column 's' .*nulls"):
        column_values(pa.array(["a", None]), "s")


def test_tensors_have_values_and_types() -> None:
    tf = pytest.importorskip("tensorflow")
    tensors = tf_columns(CHUNK.select(["n", "s", "image"]), {"n": tf.float32})
    assert tensors["n"].dtype == tf.float32
    assert tensors["s"].numpy().tolist() == [b"a", b"b"]
    assert tensors["image"].shape == (2, 3, 4)
    with pytest.raises(DataError, match="Column 'n' has nulls"):
        tf_columns(pa.record_batch({"n": pa.array([1, None])}), tf.int64)


def test_a_tf_dataset_can_be_iterated_again() -> None:
    tf = pytest.importorskip("tensorflow")
    chunk = CHUNK.drop_columns("when")
    batches = [tf_columns(chunk), tf_columns(chunk.slice(0, 1))]
    dataset = to_tf_dataset(batches, CHUNK.schema, ["n", "image"], "ids")
    assert dataset.element_spec[0]["image"] == tf.TensorSpec((None, 3, 4), tf.uint8, name="image")
    for _ in range(2):
        lengths = [len(features["n"]) for features, label in dataset]
        assert lengths == [2, 1]
