"""numpy files: rows along the first axis, read without loading the rest."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.air.errors import DataError
from paceline.data.read import read_numpy
from paceline.data.sources.listing import list_files
from paceline.data.sources.numpy_files import NumpySource
from tests.data.reading import check_pieces, table_of


def source_of(path: Path, parallelism: int = -1) -> NumpySource:
    return NumpySource(list_files(path, None, (".npy", ".npz")), parallelism)


def values_of(source: NumpySource, column: str = "data") -> Any:
    cells = table_of(source)[column].combine_chunks()
    return cells.to_numpy_ndarray() if hasattr(cells, "to_numpy_ndarray") else cells.to_numpy(zero_copy_only=False)


@pytest.mark.parametrize("parallelism", [-1, 3, 100])
@pytest.mark.parametrize(
    "values",
    [
        np.arange(17),
        np.arange(34, dtype=np.float32).reshape(17, 2),
        np.arange(102, dtype=np.uint8).reshape(17, 2, 3),
        np.arange(17, dtype=">i4"),
        np.asfortranarray(np.arange(34).reshape(17, 2)),
        np.arange(17) % 2 == 0,
        np.arange(17).astype("datetime64[s]"),
    ],
    ids=lambda values: f"{values.dtype}{values.shape}",
)
def test_arrays_come_back(tmp_path: Path, values: Any, parallelism: int) -> None:
    np.save(tmp_path / "a.npy", values)
    source = pickle.loads(pickle.dumps(source_of(tmp_path, parallelism)))
    assert sum(block.rows for block in source.blocks()) == 17
    found = values_of(source)
    assert found.shape == values.shape
    assert (found == values).all()
    check_pieces(source)


def test_files_follow_each_other_and_large_ones_are_cut(tmp_path: Path) -> None:
    np.save(tmp_path / "b-10.npy", np.arange(100, 105))
    np.save(tmp_path / "b-9.npy", np.arange(100))
    source = source_of(tmp_path, 4)
    assert len(source.blocks()) >= 4
    assert "b-9.npy, rows 0 to " in source.blocks()[0].name
    assert values_of(source).tolist() == list(range(105))


def test_archives_have_a_column_per_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.ones((3, 2, 2)))
    np.savez_compressed(tmp_path / "b.npz", x=np.arange(3, 5), y=np.zeros((2, 2, 2)))
    source = source_of(tmp_path)
    assert source.schema().names == ["x", "y"]
    assert values_of(source, "x").tolist() == [0, 1, 2, 3, 4]
    assert values_of(source, "y").sum() == 12
    check_pieces(source)


def test_no_rows_and_rows_without_content(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.empty((0, 3)))
    assert values_of(source_of(tmp_path)).shape == (0, 3)
    np.save(tmp_path / "a.npy", np.empty((4, 0)))
    assert table_of(source_of(tmp_path)).num_rows == 4


def test_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([{"any": "object"}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"a\.npy.*Python objects"):
        source_of(tmp_path).blocks()
    np.save(path, np.float64(1.0))
    with pytest.raises(DataError, match=r"a\.npy.*single value"):
        source_of(tmp_path).schema()
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"a\.npy.*readable"):
        source_of(tmp_path).schema()
    np.save(path, np.arange(1000))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match=r"a\.npy.*row 1,000"):
        table_of(source_of(tmp_path))
    path.unlink()
    np.savez(tmp_path / "b.npz", x=np.arange(3), y=np.arange(4))
    with pytest.raises(DataError, match=r"b\.npz.*'x': 3, 'y': 4"):
        source_of(tmp_path).schema()
    np.savez(tmp_path / "b.npz", x=np.array([{}]))
    with pytest.raises(DataError, match=r"b\.npz.*Python objects"):
        source_of(tmp_path).schema()


def test_arrays_of_different_shapes_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    np.save(tmp_path / "b.npy", np.ones((2, 4)))
    with pytest.raises(DataError, match=r"b.npy.*'data'"):
        table_of(source_of(tmp_path))


def test_read_numpy_gives_a_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    batch = read_numpy(tmp_path).take_batch(3)
    assert batch["data"].tolist() == [[0, 1], [2, 3], [4, 5]]
