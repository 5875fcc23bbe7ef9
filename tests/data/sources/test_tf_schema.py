"""Features that a schema of tensorflow-metadata declares, read and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError

BYTES, INT, FLOAT = 1, 2, 3


def message_classes() -> Any:
    """Schema and Feature as far as they matter here, with the field numbers of tensorflow_metadata's schema.proto."""
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor.FileDescriptorProto(name="schema.proto", package="tests")
    feature = file.message_type.add(name="Feature")
    feature.field.add(name="name", number=1, type=9, label=1)
    feature.field.add(name="type", number=2, type=5, label=1)
    feature.field.add(name="value_count", number=5, type=11, type_name=".tests.ValueCount", label=1)
    count = file.message_type.add(name="ValueCount")
    count.field.add(name="min", number=1, type=3, label=1)
    count.field.add(name="max", number=2, type=3, label=1)
    schema = file.message_type.add(name="Schema")
    schema.field.add(name="feature", number=1, type=11, type_name=".tests.Feature", label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Schema"))


def schema_of(**features: tuple[int, tuple[int, int] | None]) -> Any:
    schema = message_classes()()
    for name, (kind, count) in features.items():
        feature = schema.feature.add(name=name, type=kind)
        if count is not None:
            feature.value_count.min, feature.value_count.max = count
    return schema


def test_a_schema_decides_types_when_writing(tmp_path: Path) -> None:
    dataset = data.from_items([{"n": 1, "x": 2, "s": "a"}])
    dataset.write_tfrecords(tmp_path / "a", tf_schema=schema_of(n=(INT, None), x=(FLOAT, None), s=(BYTES, None)))
    assert data.read_tfrecords(tmp_path / "a").take_all() == [{"n": 1, "s": b"a", "x": 2.0}]
    with pytest.raises(DataError, match=r"'s'.*string.*int64"):
        dataset.write_tfrecords(tmp_path / "b", tf_schema=schema_of(n=(INT, None), x=(INT, None), s=(INT, None)))
    with pytest.raises(DataError, match=r"tf_schema.*'x'"):
        dataset.write_tfrecords(tmp_path / "b", tf_schema=schema_of(n=(INT, None)))


def test_a_schema_decides_columns_when_reading(tmp_path: Path) -> None:
    data.from_items([{"n": 1, "x": 2.0}]).write_tfrecords(tmp_path)
    schema = schema_of(n=(INT, (0, 5)), x=(FLOAT, (1, 1)), absent=(BYTES, (1, 1)))
    assert data.read_tfrecords(tmp_path, tf_schema=schema).take_all() == [{"absent": None, "n": [1], "x": 2.0}]
    open_counts = schema_of(n=(INT, None), x=(FLOAT, None))
    assert data.read_tfrecords(tmp_path, tf_schema=open_counts).take_all() == [{"n": 1, "x": 2.0}]
    with pytest.raises(DataError, match=r"'x'.*tf_schema"):
        data.read_tfrecords(tmp_path, tf_schema=schema_of(n=(INT, None))).take_all()
    with pytest.raises(ConfigError, match=r"tf_schema.*dict"):
        data.read_tfrecords(tmp_path, tf_schema={"n": "int"})
