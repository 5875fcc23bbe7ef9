"""TFRecord shards: features become columns, and damage is named."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paceline.air.errors import DataError
from paceline.data.read import read_tfrecords
from paceline.data.sources.listing import list_files
from paceline.data.sources.tf_format import masked_checksum
from paceline.data.sources.tfrecords import TfRecordSource
from tests.data.reading import check_pieces, rows_of

# -- a writer of tf.train.Example, from its definition ------------------------------------


def varint(value: int) -> bytes:
    value %= 2**64
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: list[Any], packed: bool = True) -> bytes:
    if values and isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if values and isinstance(values[0], float):
        plain = [struct.pack("<f", value) for value in values]
        return field(2, field(1, b"".join(plain)) if packed else b"".join(b"\x0d" + value for value in plain))
    plain = [varint(value) for value in values]
    return field(3, field(1, b"".join(plain)) if packed else b"".join(b"\x08" + value for value in plain))


def example(packed: bool = True, **features: list[Any]) -> bytes:
    entries = [field(1, name.encode()) + field(2, feature(values, packed)) for name, values in features.items()]
    return field(1, b"".join(field(1, entry) for entry in entries))


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    checksums = (struct.pack("<I", masked_checksum(content)) for content in (length, record))
    return length + next(checksums) + record + next(checksums)


def tf_of(path: Path, schema: pa.Schema | None = None) -> TfRecordSource:
    return TfRecordSource(list_files(path), schema)


def test_frames_of_another_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # importing the writer sets it
    record_writer = pytest.importorskip("tensorboardX.record_writer")
    writer = record_writer.RecordWriter(str(tmp_path / "a.tfrecord"))
    for number in range(3):
        writer.write(example(x=[number], s=[b"s" * 2000 * number]))
    writer.close()
    assert [(row["x"], len(row["s"])) for row in rows_of(tf_of(tmp_path))] == [(0, 0), (1, 2000), (2, 4000)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_features_become_columns(tmp_path: Path, packed: bool, name: str) -> None:
    records = [
        example(
            packed, id=[n - 3], big=[2**62, -(2**62)] * (n + 1), x=[n / 2, 0.25], s=[b"word %d" % n], tags=[b"t"] * n
        )
        for n in range(9)
    ]
    content = b"".join(framed(record) for record in records)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    source = pickle.loads(pickle.dumps(tf_of(tmp_path)))
    assert source.schema() == pa.schema(
        {
            "big": pa.list_(pa.int64()),
            "id": pa.int64(),
            "s": pa.binary(),
            "tags": pa.list_(pa.binary()),
            "x": pa.list_(pa.float32()),
        }
    )
    rows = rows_of(source)
    assert rows[1] == {"id": -2, "big": [2**62, -(2**62)] * 2, "x": [0.5, 0.25], "s": b"word 1", "tags": [b"t"]}
    assert rows[8]["big"] == [2**62, -(2**62)] * 9
    assert [row["id"] for row in rows] == list(range(-3, 6))
    check_pieces(source)


def test_missing_features_are_null_and_the_schema_may_be_given(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(framed(example(x=[1], y=[1.5])) + framed(example(x=[2])))
    (tmp_path / "b").write_bytes(framed(example(x=[3, 4])))
    assert rows_of(tf_of(tmp_path / "a")) == [{"x": 1, "y": 1.5}, {"x": 2, "y": None}]
    with pytest.raises(DataError, match=r"b, record 0\b.*'x'.*2 values.*schema"):
        rows_of(tf_of(tmp_path))
    schema = pa.schema({"x": pa.list_(pa.int64()), "y": pa.float64()})
    assert rows_of(tf_of(tmp_path, schema)) == [
        {"x": [1], "y": 1.5},
        {"x": [2], "y": None},
        {"x": [3, 4], "y": None},
    ]
    (tmp_path / "b").write_bytes(framed(example(x=[1], z=[1])))
    with pytest.raises(DataError, match=r"b, record 0\b.*'z'"):
        rows_of(tf_of(tmp_path))
    (tmp_path / "b").write_bytes(framed(example(x=[b"text"])))
    with pytest.raises(DataError, match=r"b, records 0 to 0\b.*'x'.*int64"):
        rows_of(tf_of(tmp_path))


def test_damaged_tfrecords(tmp_path: Path) -> None:
    good = framed(example(x=[1])) + framed(example(x=[2]))
    half = len(good) // 2
    for position, message in [
        (half + 3, "record 1.*length"),
        (half + 15, "record 1.*content"),
    ]:
        damaged = bytearray(good)
        damaged[position] ^= 1
        (tmp_path / "a").write_bytes(bytes(damaged))
        with pytest.raises(DataError, match=rf"\ba, {message}"):
            rows_of(tf_of(tmp_path))
    for length in (half + 5, half + 15, len(good) - 1):
        (tmp_path / "a").write_bytes(good[:length])
        with pytest.raises(DataError, match=r"\ba\b.*record 1\b"):
            rows_of(tf_of(tmp_path))
    for content in (b"\xff" * 20, b"\x0a\x05abc", b"\x0a\x02\x08\x01"):
        (tmp_path / "a").write_bytes(framed(content))
        with pytest.raises(DataError, match=r"\ba, record 0\b.*tf\.train\.Example"):
            rows_of(tf_of(tmp_path))


def test_read_tfrecords_gives_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(framed(example(x=[1])))
    (tmp_path / "notes.txt").write_text("not meant")
    assert read_tfrecords(tmp_path).take_all() == [{"x": 1}]
