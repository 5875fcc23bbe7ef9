"""TFRecord and WebDataset shards."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline.air.errors import DataError
from paceline.data.read import read_tfrecords, read_webdataset
from paceline.data.sources.listing import list_files
from paceline.data.sources.tf_framing import crc32c, masked_checksum
from paceline.data.sources.tfrecords import TfRecordSource
from paceline.data.sources.webdataset import WebDatasetSource
from paceline.data.tensors import tensor_to_numpy
from tests.data.reading import check_pieces, rows_of, table_of

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


# -- TFRecord -----------------------------------------------------------------------------


def test_crc32c_against_published_values() -> None:
    # The check value of the algorithm, and the examples of RFC 3720, appendix B.4.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 1023, 1024, 1025, 1026, 1027, 1028, 3000])
def test_crc32c_over_parts_equals_bit_by_bit(length: int) -> None:
    content = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8).tobytes()
    state = 0xFFFFFFFF
    for byte in content:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    assert crc32c(content) == state ^ 0xFFFFFFFF


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
    with pytest.raises(
        DataError, match=r"b, record 0: feature 'x' has 2 values, but the first records have one.*schema"
    ):
        rows_of(tf_of(tmp_path))
    schema = pa.schema({"x": pa.list_(pa.int64()), "y": pa.float64()})
    assert rows_of(tf_of(tmp_path, schema)) == [
        {"x": [1], "y": 1.5},
        {"x": [2], "y": None},
        {"x": [3, 4], "y": None},
    ]
    (tmp_path / "b").write_bytes(framed(example(x=[1], z=[1])))
    with pytest.raises(DataError, match=r"b, record 0 has a feature 'z' that the first records do not have"):
        rows_of(tf_of(tmp_path))
    (tmp_path / "b").write_bytes(framed(example(x=[b"text"])))
    with pytest.raises(DataError, match=r"b, records 0 to 0: feature 'x' does not fit type int64"):
        rows_of(tf_of(tmp_path))


def test_damaged_tfrecords(tmp_path: Path) -> None:
    good = framed(example(x=[1])) + framed(example(x=[2]))
    half = len(good) // 2
    for position, message in [
        (half + 3, "record 1: the length is damaged"),
        (half + 15, "record 1: the content is damaged"),
    ]:
        damaged = bytearray(good)
        damaged[position] ^= 1
        (tmp_path / "a").write_bytes(bytes(damaged))
        with pytest.raises(DataError, match=f"a, {message}"):
            rows_of(tf_of(tmp_path))
    for length in (half + 5, half + 15, len(good) - 1):
        (tmp_path / "a").write_bytes(good[:length])
        with pytest.raises(DataError, match="a ends in the middle of record 1"):
            rows_of(tf_of(tmp_path))
    for content in (b"\xff" * 20, b"\x0a\x05abc", b"\x0a\x02\x08\x01"):
        (tmp_path / "a").write_bytes(framed(content))
        with pytest.raises(DataError, match=r"a, record 0 is no tf.train.Example"):
            rows_of(tf_of(tmp_path))


def test_read_tfrecords_gives_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(framed(example(x=[1])))
    (tmp_path / "notes.txt").write_text("not meant")
    assert read_tfrecords(tmp_path).take_all() == [{"x": 1}]


# -- WebDataset ---------------------------------------------------------------------------


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def npy(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def web_of(path: Path, decoder: bool = True) -> WebDatasetSource:
    return WebDatasetSource(list_files(path), decoder)


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    return bool(left.schema == right.schema and left.to_pylist() == right.to_pylist())


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tar.gz", "w:gz")])
def test_files_of_one_name_are_a_row(tmp_path: Path, name: str, mode: str) -> None:
    files: dict[str, bytes] = {}
    for n in range(5):
        files |= {
            f"./train/{n}.txt": b"word \xc3\xbc",
            f"./train/{n}.cls": b" 7\n",
            f"./train/{n}.meta.json": json.dumps({"n": n, "at": [1, 2]}).encode(),
            f"./train/{n}.npy": npy(np.arange(n + 1)),
            f"./train/{n}.dat": b"\x00\xff",
        }
    write_tar(tmp_path / name, {".hidden": b"x", **files}, mode)
    source = pickle.loads(pickle.dumps(web_of(tmp_path)))
    assert source.schema().names == ["__key__", "txt", "cls", "meta.json", "npy", "dat"]
    row = rows_of(source, columns=("__key__", "txt", "cls", "meta.json", "dat"))[2]
    assert row == {
        "__key__": "train/2", "txt": "word ü", "cls": 7, "meta.json": {"n": 2, "at": [1, 2]}, "dat": b"\x00\xff",
    }  # fmt: skip
    arrays = tensor_to_numpy(table_of(source)["npy"].combine_chunks(), copy=False)
    assert [array.tolist() for array in arrays] == [list(range(n + 1)) for n in range(5)]
    check_pieces(source, same_rows)
    assert rows_of(web_of(tmp_path, decoder=False))[2]["cls"] == b" 7\n"


def test_images_in_shards(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image_module.fromarray(np.full((4, 5, 3), 9, np.uint8)).save(out, "PNG")
    write_tar(tmp_path / "a.tar", {"x.png": out.getvalue(), "x.cls": b"1"})
    (cell,) = tensor_to_numpy(table_of(web_of(tmp_path))["png"].combine_chunks(), copy=False)
    assert cell.shape == (4, 5, 3)
    assert (cell == 9).all()


def test_rows_may_lack_files_but_not_bring_new_ones(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"a", "1.cls": b"1", "2.txt": b"b"})
    write_tar(tmp_path / "b.tar", {"3.cls": b"3"})
    expected = [("1", "a", 1), ("2", "b", None), ("3", None, 3)]
    assert [tuple(row.values()) for row in rows_of(web_of(tmp_path))] == expected
    write_tar(tmp_path / "b.tar", {"3.new": b"3"})
    with pytest.raises(DataError, match=r"b.tar.*additional column 'new'"):
        rows_of(web_of(tmp_path))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.cls": b"one"}, r"a.tar, 1.cls cannot be decoded as cls"),
        ({"1.json": b"{"}, r"a.tar, 1.json cannot be decoded as json"),
        ({"1.npy": b"x"}, r"a.tar, 1.npy cannot be decoded as npy"),
        ({"1.txt": b"\xff"}, r"a.tar, 1.txt cannot be decoded as txt"),
    ],
)
def test_content_that_cannot_be_decoded(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write_tar(tmp_path / "a.tar", files)
    with pytest.raises(DataError, match=message):
        rows_of(web_of(tmp_path))


def test_damaged_archives(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"a.tar is no readable tar archive"):
        rows_of(web_of(tmp_path))
    write_tar(tmp_path / "a.tar", {"1.dat": bytes(5000)})
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:3000])
    with pytest.raises(DataError, match=r"a.tar is no readable tar archive"):
        rows_of(web_of(tmp_path))


def test_read_webdataset_gives_a_dataset(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"a"})
    assert read_webdataset(tmp_path).take_all() == [{"__key__": "1", "txt": "a"}]
