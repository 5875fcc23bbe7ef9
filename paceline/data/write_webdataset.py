"""Writing WebDataset tar files: the files of a row lie next to each other, named by its key and the columns."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.data.formats import to_rows
from paceline.data.sources.images import IMAGE_EXTENSIONS, check_pillow
from paceline.data.write_formats import FileFormat

if TYPE_CHECKING:
    from paceline.data.block import Chunk

_KEY = "__key__"
_IMAGES = {extension.removeprefix(".") for extension in IMAGE_EXTENSIONS}
_PILLOW_NAMES = {"jpg": "jpeg", "tif": "tiff"}
_NUMBERS_AS_TEXT = ("cls", "cls2", "index", "id", "count", "inx")


class WebDatasetFormat(FileFormat):
    """Values that are null have no file. Rows without a column "__key__" are numbered within their archive."""

    name = "webdataset"
    extension = "tar"

    def __init__(self, encoder: bool | Callable[[dict[str, Any]], Mapping[str, Any]] | None) -> None:
        if not isinstance(encoder, bool) and encoder is not None and not callable(encoder):
            raise ConfigError(f"encoder={encoder!r}: give True, False, or a function from a row to a row.")
        self._encoder = encoder

    def write(self, path: Path, schema: pa.Schema, chunks: Iterator[Chunk]) -> None:
        number = 0
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            for chunk in chunks:
                for row in to_rows(chunk):
                    key = row.pop(_KEY, None) or f"{number:06d}"
                    for column, content in self._contents(row, key):
                        _add(archive, f"{key}.{column}", content)
                    number += 1

    def _contents(self, row: dict[str, Any], key: str) -> Iterator[tuple[str, bytes]]:
        encoded = self._encoder(row) if callable(self._encoder) else row
        for column, value in encoded.items():
            if value is None or column.startswith("__"):
                continue
            yield column, _encoded(column, value, key) if self._encoder is True else _plain(column, value, key)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o444
    archive.addfile(member, io.BytesIO(content))


def _encoded(column: str, value: Any, key: str) -> bytes:
    kind = column.rpartition(".")[2].lower()
    if isinstance(value, bytes | str):
        return _plain(column, value, key)
    if kind == "json":
        return json.dumps(value, default=_as_list).encode()
    if kind == "npy":
        content = io.BytesIO()
        np.save(content, np.asarray(value), allow_pickle=False)
        return content.getvalue()
    if kind in _IMAGES:
        return _image(kind, value, key)
    if kind in ("txt", "text", "transcript", *_NUMBERS_AS_TEXT) and isinstance(value, bool | int | float):
        return str(value).encode()
    return _plain(column, value, key)


def _image(kind: str, value: Any, key: str) -> bytes:
    check_pillow()
    import PIL.Image

    content = io.BytesIO()
    try:
        PIL.Image.fromarray(np.asarray(value)).save(content, format=_PILLOW_NAMES.get(kind, kind))
    except (TypeError, ValueError, OSError, KeyError) as error:
        raise DataError(f"write_webdataset: {key}.{kind} cannot be encoded as an image: {error}") from error
    return content.getvalue()


def _plain(column: str, value: Any, key: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise DataError(
        f"write_webdataset: column {column!r} of row {key!r} holds {type(value).__name__}, which has no encoding under "
        "that name. Rename the column to txt, cls, json, npy or png, or pass encoder=function that returns bytes."
    )


def _as_list(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
