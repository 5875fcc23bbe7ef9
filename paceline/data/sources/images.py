"""Images: one row per file, the pixels in a tensor column "image"."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.data.block import ReadRequest
from paceline.data.plan import chosen
from paceline.data.sources.file_source import CHUNK_BYTES, FileGroupSource, read_bytes
from paceline.data.tensors import ragged_array, tensor_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline.data.block import Chunk
    from paceline.data.sources.listed_file import ListedFile

IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


class ImageSource(FileGroupSource):
    """`size` (height, width): every image is resized, and the column has one shape; else images keep theirs."""

    format = "images"

    def __init__(
        self,
        files: tuple[ListedFile, ...],
        parallelism: int,
        size: tuple[int, int] | None,
        mode: str | None,
        include_paths: bool,
    ) -> None:
        super().__init__(files, parallelism)
        check_pillow()
        self._size = _checked_size(size)
        self._mode = _checked_mode(mode)
        self._include_paths = include_paths

    def _find_schema(self) -> pa.Schema:
        """Which type the pixels have, and how many channels, the first image tells."""
        first = self._decoded(self.files[0])
        fields = [pa.field("image", self._column([first]).type)]
        return pa.schema([*fields, pa.field("path", pa.string())] if self._include_paths else fields)

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        with_pixels = request.columns is None or "image" in request.columns
        schema = self.schema() if with_pixels else pa.schema([pa.field("path", pa.string())])
        images: list[NDArray[Any]] = []
        paths: list[str] = []
        size = 0
        for file in self._wanted(block, request):
            if with_pixels:
                images.append(self._decoded(file))
                size += images[-1].nbytes
            paths.append(file.label)
            if len(paths) == request.chunk_rows or size >= CHUNK_BYTES:
                yield self._chunk(images, paths, schema, request)
                images, paths, size = [], [], 0
        if paths:
            yield self._chunk(images, paths, schema, request)

    def _decoded(self, file: ListedFile) -> NDArray[Any]:
        return decode_image(read_bytes(file), file.label, self._size, self._mode)

    def _chunk(self, images: list[NDArray[Any]], paths: list[str], schema: pa.Schema, request: ReadRequest) -> Chunk:
        columns = {"path": pa.array(paths, pa.string())}
        if images:
            columns["image"] = self._column(images)
            wanted = schema.field("image").type
            if columns["image"].type != wanted:
                raise self._other_kind(images, paths, wanted)
        chunk = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        return chosen(chunk, request.columns, paths[0])

    def _column(self, images: list[NDArray[Any]]) -> pa.Array:
        same = self._size is not None and len({(image.shape, image.dtype) for image in images}) == 1
        return tensor_array(np.stack(images)) if same else ragged_array(images)

    def _other_kind(self, images: list[NDArray[Any]], paths: list[str], wanted: pa.DataType) -> DataError:
        path, image = next(
            (path, image)
            for path, image in zip(paths, images, strict=True)
            if self._column([image]).type != wanted or len(images) == 1
        )
        return DataError(
            f"{path}: pixels of shape {image.shape} and type {image.dtype} do not fit the first image of this dataset, "
            f'{self.files[0].label} ({wanted}). Pass mode="RGB" to read_images so that all get the same channels.'
        )


def check_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ConfigError("Reading images needs Pillow: pip install pillow") from error


def decode_image(content: bytes, label: str, size: tuple[int, int] | None, mode: str | None) -> NDArray[Any]:
    """Pixels as (height, width) or (height, width, channels)."""
    check_pillow()
    import PIL.Image

    try:
        image: PIL.Image.Image = PIL.Image.open(io.BytesIO(content))
        if mode is not None and image.mode != mode:
            image = image.convert(mode)
        if size is not None:
            height, width = size
            image = image.resize((width, height), PIL.Image.Resampling.BILINEAR)
        return np.array(image)
    except PIL.UnidentifiedImageError as error:
        raise DataError(f"{label} cannot be decoded as an image: its format is not known to Pillow.") from error
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise DataError(f"{label} cannot be decoded as an image: {error}") from error


def _checked_size(size: tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = size if isinstance(size, tuple | list) else ()
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
        raise ConfigError(f"size={size!r}: give (height, width) in pixels.")
    return sides[0], sides[1]


def _checked_mode(mode: str | None) -> str | None:
    from PIL import ImageMode

    if mode is not None:
        try:
            ImageMode.getmode(mode)
        except (KeyError, TypeError):
            raise ConfigError(f'mode={mode!r}: give a mode of Pillow, such as "RGB", "RGBA" or "L".') from None
    return mode
