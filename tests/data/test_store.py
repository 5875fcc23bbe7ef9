"""Rows kept in memory or in a file without a name."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import paceline.data.store as store_module
from paceline.air.errors import DataError, SerializationError
from paceline.data.block import ReadRequest
from paceline.data.store import StoredSource, in_file, store
from paceline.data.tensors import ragged_array, tensor_array


def some_rows(start: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(start, start + count)
    return pa.record_batch(
        {
            "id": numbers,
            "text": pa.array([f"row {number}" if number % 7 else None for number in numbers]),
            "kind": pa.array([f"kind {number % 3 + start}" for number in numbers]).dictionary_encode(),
            "tensor": tensor_array(np.stack([np.full((2, 2), number) for number in numbers])),
            "ragged": ragged_array([np.full(number % 3, number) for number in numbers]),
        }
    )


def chunks(sizes: list[int]) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield some_rows(start, size) if size else some_rows(0, 9).slice(9)
        start += size


SCHEMA = some_rows(0, 9).schema
EXPECTED = pa.Table.from_batches([*chunks([100])])


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of more than a few rows goes to a file, in several portions."""
    monkeypatch.setattr(store_module, "MEMORY_BYTES", 2_000)
    monkeypatch.setattr(store_module, "BATCH_BYTES", 1_000)


def all_rows(source: StoredSource, chunk_rows: int = 7) -> pa.Table:
    parts = [
        chunk
        for block in range(len(source.blocks()))
        for chunk in source.read(block, ReadRequest(chunk_rows=chunk_rows))
    ]
    return pa.Table.from_batches(parts, source.schema())


def test_small_amounts_stay_in_memory_and_travel_by_value() -> None:
    source = store(chunks([40, 60]), SCHEMA)
    assert source.file is None
    copy = pickle.loads(pickle.dumps(source))
    assert all_rows(copy).column("id").to_pylist() == list(range(100))
    assert [block.rows for block in copy.blocks()] == [block.rows for block in source.blocks()]


@pytest.mark.usefixtures("small_limits")
def test_a_file_gives_back_what_was_stored_in_every_column_type() -> None:
    source = store(chunks([40, 0, 33, 27]), SCHEMA)
    assert source.file is not None
    rows = all_rows(source)
    for name in ("id", "text", "tensor", "ragged"):
        assert rows.column(name).to_pylist() == EXPECTED.column(name).to_pylist()
    kinds = rows.column("kind").to_pylist()
    assert kinds[:2] == ["kind 0", "kind 1"]
    assert kinds[40] == "kind 41"  # dictionaries differ from chunk to chunk
    assert sum(block.rows or 0 for block in source.blocks()) == source.rows == 100


@pytest.mark.usefixtures("small_limits")
def test_rows_are_taken_from_anywhere_in_any_order() -> None:
    source = store(chunks([40, 33, 27]), SCHEMA)
    wanted = np.array([99, 0, 41, 41, 5, 72, 73])
    taken = source.take(wanted, ("text", "id", "ragged"))
    assert taken.schema.names == ["text", "id", "ragged"]
    assert taken.column("id").to_pylist() == wanted.tolist()
    assert taken.column("ragged").to_pylist() == EXPECTED.column("ragged").take(pa.array(wanted)).to_pylist()
    missing = np.array([False, True, False, False, False, False, True])
    assert source.take(wanted, ("id",), missing).column("id").to_pylist() == [99, None, 41, 41, 5, 72, None]
    assert source.take(np.array([], np.int64)).num_rows == 0
    assert source.take(np.zeros(2, np.int64), missing=np.ones(2, bool)).column("tensor").null_count == 2


@pytest.mark.usefixtures("small_limits")
def test_any_part_of_a_block_can_be_read() -> None:
    source = store(chunks([40, 33, 27]), SCHEMA, block_rows=30)
    assert [block.rows for block in source.blocks()] == [30, 30, 30, 10]
    for start, stop in [(0, 5), (9, 30), (28, 99), (5, 5), (40, 50)]:
        parts = list(source.read(1, ReadRequest(start, stop, ("id",), chunk_rows=4)))
        assert all(part.num_rows <= 4 for part in parts)
        found = [value for part in parts for value in part.column(0).to_pylist()]
        assert found == list(range(30, 60))[start:stop]


@pytest.mark.usefixtures("small_limits")
def test_another_process_gets_the_file_by_its_descriptor() -> None:
    source = store(chunks([40, 33, 27]), SCHEMA)
    assert source.file is not None
    program = (
        "import sys; from paceline.data.store import StoredSource; import numpy as np\n"
        "from paceline.air.attachment import Attachment\n"
        "source = StoredSource.from_attachment(Attachment.from_descriptor(int(sys.argv[1])))\n"
        "print(source.rows, source.take(np.array([7, 70])).column('id').to_pylist())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(source.file.fileno())],
        pass_fds=[source.file.fileno()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "100 [7, 70]"
    with pytest.raises(SerializationError, match="cannot be pickled"):
        pickle.dumps(source)


def test_in_file_puts_rows_in_memory_into_a_file() -> None:
    source = store(chunks([40]), SCHEMA, block_rows=9)
    copy = StoredSource.from_attachment(in_file(source))
    assert all_rows(copy).column("id").to_pylist() == list(range(40))
    assert copy.file is not None
    assert in_file(copy) is copy.file


@pytest.mark.usefixtures("small_limits")
def test_the_file_is_closed_with_the_last_source_and_rows_outlive_it() -> None:
    source = store(chunks([40, 33, 27]), SCHEMA)
    other = source.with_block_rows(10)
    assert source.file is not None
    descriptor = source.file.fileno()
    table = source.table()
    expected = other.table().column("id").to_pylist()
    del source, other
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert table.column("id").to_pylist() == expected == list(range(100))


@pytest.mark.usefixtures("small_limits")
def test_a_full_disk_is_told_with_a_way_out(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, hard))  # writing beyond this fails, as on a full disk
    try:
        with pytest.raises(DataError, match="TMPDIR") as caught:
            store(chunks([400, 400]), SCHEMA, directory=str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path) in str(caught.value)


def test_slices_do_not_hold_on_to_what_they_were_cut_from() -> None:
    large = pa.record_batch({"x": np.zeros(1_000_000)})
    source = store(iter([large.slice(10, 5)]), large.schema)
    (batch,) = source.table().to_batches()
    assert batch.get_total_buffer_size() < 1_000
    assert batch.num_rows == 5
