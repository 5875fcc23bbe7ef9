"""TensorFlow tensors from chunks; what needs no TensorFlow is tested without it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from paceline.air.errors import ConfigError, DataError
from paceline.data.tensors import tensor_array
from paceline.data.tf_batches import column_values, tensor_signature

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
    with pytest.raises(DataError, match="'when'"):
        tensor_signature(CHUNK.schema, "when")
    with pytest.raises(DataError, match="'c'"):
        tensor_signature(pa.schema([("c", pa.struct([("a", pa.int64())]))]), "c")
    with pytest.raises(ConfigError, match="'z'"):
        tensor_signature(CHUNK.schema, "z")


def test_values_keep_strings() -> None:
    assert column_values(CHUNK.column("s"), "s").tolist() == ["a", "b"]
    assert column_values(pa.array([b"\xff"]), "s").tolist() == [b"\xff"]
    assert column_values(CHUNK.column("ids"), "ids").shape == (2, 2)
    with pytest.raises(DataError, match=r"'s'.*nulls"):
        column_values(pa.array(["a", None]), "s")


# TensorFlow changes the environment and starts threads when it is imported: it runs in a process of its own.

TENSORS = """
import numpy as np, pyarrow as pa, tensorflow as tf
from paceline.air.errors import DataError
from paceline.data.tensors import tensor_array
from paceline.data.tf_batches import tf_columns

chunk = pa.record_batch({
    "n": pa.array([1, 2], pa.int32()),
    "s": pa.array(["a", "b"]).dictionary_encode(),
    "image": tensor_array(np.zeros((2, 3, 4), dtype=np.uint8)),
})
tensors = tf_columns(chunk, {"n": tf.float32})
assert tensors["n"].dtype == tf.float32
assert tensors["s"].numpy().tolist() == [b"a", b"b"]
assert tensors["image"].shape == (2, 3, 4)
try:
    tf_columns(pa.record_batch({"n": pa.array([1, None])}), tf.int64)
except DataError as error:
    assert "'n' has nulls" in str(error), error
else:
    raise AssertionError("nulls in integers were taken")
"""

DATASETS = """
import numpy as np, tensorflow as tf
from paceline import data

rows = data.from_numpy(np.arange(10.0)).map_batches(lambda b: {"x": b["data"], "y": 3 * b["data"]})
assert [len(batch["x"]) for batch in rows.iter_tf_batches(batch_size=4)] == [4, 4, 2]
dataset = rows.to_tf("x", "y", batch_size=4)
for _ in range(2):  # every iteration is a new pass
    seen = [float(value) for features, _ in dataset for value in features]
    assert seen == [float(number) for number in range(10)], seen
named = rows.to_tf(["x"], ["y"], batch_size=5)
assert set(named.element_spec[0]) == {"x"}
"""

LEARNS = """
import numpy as np, tensorflow as tf
from paceline import data

x = np.linspace(-1, 1, 256, dtype="float32")
rows = data.from_pandas(__import__("pandas").DataFrame({"x": x, "y": 2 * x + 1}))
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
shard = rows.random_shuffle(seed=1).iterator()
features = shard.to_tf("x", "y", batch_size=32).map(lambda x, y: (x[:, None], y[:, None]))
losses = model.fit(features, epochs=8, verbose=0).history["loss"]
assert losses[-1] < 0.05 * losses[0], losses
assert shard.epoch == 8, shard.epoch
"""

RAGGED = """
import numpy as np, tensorflow as tf
from paceline import data
from paceline.air.errors import DataError

rows = data.from_items([{"ids": list(range(n)), "image": np.full((n, 2 * n), n), "y": n} for n in (1, 3, 2, 2)])
batch = next(iter(rows.iter_tf_batches(batch_size=4)))
assert batch["ids"].to_list() == [[0], [0, 1, 2], [0, 1], [0, 1]]
assert batch["image"].bounding_shape().numpy().tolist() == [4, 3, 6]
assert batch["image"][1].to_tensor().numpy().tolist() == np.full((3, 6), 3).tolist()
shard = rows.iterator()
dataset = shard.to_tf(["ids", "image"], "y", batch_size=2)
assert shard.epoch == 0 and dataset.element_spec[0]["image"].ragged_rank == 2
assert [features["ids"].to_list() for features, _ in dataset] == [[[0], [0, 1, 2]], [[0, 1], [0, 1]]]
even = data.from_items([{"v": [1.0, 2.0], "y": 1}] * 4)
assert {tuple(v.shape) for v, _ in even.to_tf("v", "y", batch_size=2)} == {(2, 2)}
late = data.from_items([{"v": [1] * n, "y": n} for n in (2, 2, 1, 3)])
try:
    list(late.to_tf("v", "y", batch_size=2))
except Exception as error:
    assert "'v' differ in length" in str(error), error
else:
    raise AssertionError("a ragged batch came out of a dataset of plain tensors")
"""

RESUMES = """
def resumed(state):
    again = data.range(64).iterator()
    again.load_state_dict(state)
    return [int(number) for batch in again.iter_batches(batch_size=8) for number in batch["id"]]

shard = data.range(64).iterator()
dataset = shard.to_tf("id", "id", batch_size=8)
ahead = iter(dataset.prefetch(2))
for _ in range(3):
    next(ahead)
assert resumed(shard.state_dict()) == list(range(64))  # not: what TensorFlow has not taken yet
assert len(list(ahead)) == 5
assert shard.epoch == 1, shard.epoch
exact = iter(shard.iter_tf_batches(batch_size=8))
next(exact)
assert resumed(shard.state_dict()) == list(range(8, 64))
"""

FROM_TF = """
from paceline.air.errors import ConfigError

rows = data.from_tf(tf.data.Dataset.from_tensor_slices({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [b"a", b"b"]}))
assert rows.take_batch(2)["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
assert [row["y"] for row in rows.take_all()] == [b"a", b"b"]
pairs = data.from_tf(tf.data.Dataset.from_tensor_slices(([1, 2], [3, 4])))
assert pairs.take_all() == [{"item_0": 1, "item_1": 3}, {"item_0": 2, "item_1": 4}]
assert data.from_tf(tf.data.Dataset.range(2)).take_all() == [{"item": 0}, {"item": 1}]
for wrong, hint in ((tf.data.Dataset.range(3).repeat(), "repeat()"), ([1, 2], "tf.data.Dataset")):
    try:
        data.from_tf(wrong)
    except ConfigError as error:
        assert hint in str(error), error
    else:
        raise AssertionError(f"from_tf took {wrong}")
"""


def test_with_tensorflow() -> None:
    script = TENSORS + DATASETS + LEARNS + RAGGED + RESUMES + FROM_TF  # one process: the import takes most of the time
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
