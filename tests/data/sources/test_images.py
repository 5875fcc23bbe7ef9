"""Images: one row per file."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline.air.errors import ConfigError, DataError
from paceline.data.read import read_images
from paceline.data.sources.images import ImageSource
from paceline.data.sources.listing import list_files
from paceline.data.tensors import RaggedTensorType, tensor_to_numpy
from tests.data.reading import check_pieces, table_of


def write_files(directory: Path, count: int) -> None:
    for number in range(count):
        (directory / f"f{number}.bin").write_bytes(b"%d" % number)


def images_of(path: Path, size: Any = None, mode: str | None = None, include_paths: bool = False) -> ImageSource:
    return ImageSource(list_files(path, None, (".png",)), -1, size, mode, include_paths)


def save(path: Path, pixels: Any) -> None:
    from PIL import Image

    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


def cells_of(source: ImageSource) -> Any:
    return tensor_to_numpy(table_of(source)["image"].combine_chunks(), copy=False)


def same_cells(left: pa.Table, right: pa.Table) -> bool:
    return bool(left.schema == right.schema and left.to_pylist() == right.to_pylist())


def test_images_keep_their_shapes(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pixels = [np.full((2 + number, 3, 3), number) for number in range(4)]
    for number, image in enumerate(pixels):
        save(tmp_path / f"i{number}.png", image)
    source = pickle.loads(pickle.dumps(images_of(tmp_path, include_paths=True)))
    assert isinstance(source.schema().field("image").type, RaggedTensorType)
    for cell, image in zip(cells_of(source), pixels, strict=True):
        assert (cell == image).all()
    assert table_of(source, columns=("path",))["path"].to_pylist()[3] == str(tmp_path / "i3.png")
    check_pieces(source, same_cells)


def test_images_of_one_size_are_one_array(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    save(tmp_path / "a.png", np.full((5, 7, 3), 100))
    save(tmp_path / "b.png", np.full((9, 2), 50))
    source = images_of(tmp_path, size=(4, 6), mode="RGB")
    assert cells_of(source).shape == (2, 4, 6, 3)
    assert cells_of(source)[1].max() == 50
    check_pieces(source, same_cells)
    assert cells_of(images_of(tmp_path, size=(4, 6), mode="L")).shape == (2, 4, 6)
    with pytest.raises(DataError, match=r'b\.png.*\(4, 6\).*mode="RGB"'):
        cells_of(images_of(tmp_path, size=(4, 6)))
    assert read_images(tmp_path, size=(4, 6), mode="RGB").take_batch(2)["image"].shape == (2, 4, 6, 3)


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    save(tmp_path / "a.png", np.zeros((2, 2, 3)))
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:45])
    with pytest.raises(DataError, match=r"b\.png.*decoded"):
        cells_of(images_of(tmp_path))
    with pytest.raises(ConfigError, match=r"size=\(0, 2\): give \(height, width\)"):
        read_images(tmp_path, size=(0, 2))


def test_without_pillow_there_is_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    write_files(tmp_path, 1)
    with pytest.raises(ConfigError, match="pip install pillow"):
        read_images(tmp_path / "f0.bin")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"size": 8, "mode": "RGB"}, r"size=8.*\(height, width\)"),
        ({"size": (0, 2)}, r"size=\(0, 2\).*\(height, width\)"),
        ({"mode": "RGBX3"}, "mode='RGBX3'.*Pillow"),
    ],
)
def test_sizes_and_modes_that_cannot_work(arguments: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(ConfigError, match=says):
        read_images(tmp_path, **arguments)
