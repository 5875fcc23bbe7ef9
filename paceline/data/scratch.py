"""Values that must be looked at again after the pass: in memory while they are few, then in a file."""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass
from typing import IO, Self

import numpy as np

from paceline.air.errors import DataError

MEMORY_BYTES = 256 << 20
"""So much is kept in memory, over all statistics of one pass."""


@dataclass(frozen=True)
class InFile:
    """An array that lies in the scratch file."""

    offset: int
    count: int
    dtype: np.dtype[np.generic]


Stored = np.ndarray | InFile


class Scratch:
    """Keeps arrays until they are asked for. Threads may put at the same time.

    The file has no name: it disappears with the process, however that ends.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._left = memory_bytes
        self._file: IO[bytes] | None = None
        self._end = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, values: np.ndarray) -> Stored:
        """Keep a copy of a one-dimensional array."""
        with self._lock:
            if values.nbytes <= self._left:
                self._left -= values.nbytes
                place = None
            else:
                place = InFile(self._end, len(values), values.dtype)
                self._end += values.nbytes
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix="paceline-statistics-")  # noqa: SIM115
        if place is None:
            return values.copy()
        self._write(np.ascontiguousarray(values), place.offset)
        return place

    def get(self, stored: Stored) -> np.ndarray:
        """What was put; not to be written to."""
        if isinstance(stored, np.ndarray):
            return stored
        assert self._file is not None
        values = np.empty(stored.count, stored.dtype)
        rest, offset = values.view(np.uint8).data, stored.offset
        while rest:
            count = os.preadv(self._file.fileno(), [rest], offset)
            if count == 0:
                raise DataError("The temporary file of the statistics is shorter than what was written to it.")
            rest, offset = rest[count:], offset + count
        return values

    def _write(self, values: np.ndarray, offset: int) -> None:
        assert self._file is not None
        rest = values.view(np.uint8).data
        try:
            while rest:
                count = os.pwrite(self._file.fileno(), rest, offset)
                rest, offset = rest[count:], offset + count
        except OSError as error:
            raise DataError(
                f"Values for exact quantiles could not be written to a temporary file in {tempfile.gettempdir()}: "
                f"{error.strerror}. Set TMPDIR to a directory with more space."
            ) from error
