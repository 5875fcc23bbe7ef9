"""Rows as nearly all runs report them: numbers, under the same few names. Read many at a time, in half of the time.

What has anything else between its rows (text, nested metrics, NaN, other records) is left to `row_reader.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.storage.journal import body_of
from paceline.view.column_table import NOT_FINITE, Floats

LEAST_BYTES = 64 << 10
"""Fewer are read at once in any way."""
_MOST_MISSES = 8
"""Pieces of a journal that were not such rows, after which no more is tried."""
_LEAST_SHARE = 0.3
"""Of rank 0's rows: where there are more ranks, it is quicker not to decode their rows."""
_ROW, _USAGE = b' {"kind":"row",', b' {"kind":"usage",'
_MOST_DIGITS = 7
"""Of the length of a record."""

_HEX = np.full(256, 16, np.uint32)
_HEX[list(b"0123456789abcdef")] = range(16)
_PLACES = (16 ** np.arange(8)[::-1]).astype(np.uint32)
_axes_of = attrgetter("index", "stamp", "elapsed")


class PlainRows:
    """Decodes the rows of one journal. It knows the names of metrics that it was told of."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._decode: Any = None
        self._misses = 0

    def expect(self, names: Iterable[str]) -> None:
        """These are the metrics that the run has reported so far."""
        known = tuple(names)
        if known != self._names and self._misses < _MOST_MISSES:
            self._names, self._decode = known, _decoder(known)

    def read(self, content: bytes) -> tuple[Floats, Floats] | None:
        """Rank 0's rows in whole lines of a journal: index, stamp and elapsed of each; and its metrics, NaN if a row
        lacks one. None if this is not the way to read them."""
        if self._decode is None or len(content) < LEAST_BYTES or self._misses >= _MOST_MISSES:
            return None
        found = self._read(_without_usage(content))
        self._misses += found is None
        return found

    def _read(self, content: bytes) -> tuple[Floats, Floats] | None:
        array = np.frombuffer(content, np.uint8)
        ends = np.flatnonzero(array == ord("\n"))
        if not ends.size or content.count(_ROW) != ends.size:
            return None
        starts = np.concatenate([[0], ends[:-1] + 1])
        bodies = _bodies(array, starts)
        if bodies is None or not _are_whole(content, array, starts, bodies, ends):
            return None
        try:
            rows = self._decode(_as_list(array, starts, bodies, ends))
        except msgspec.DecodeError:
            return None
        own = [row for row in rows if row.rank == 0]
        if len(own) < _LEAST_SHARE * len(rows):
            return None
        axes = _table(map(_axes_of, own), len(own), 3)
        metrics = _table((msgspec.structs.astuple(row.metrics) for row in own), len(own), len(self._names))
        metrics[np.abs(metrics) >= NOT_FINITE] = np.inf
        return axes, metrics


def _without_usage(content: bytes) -> bytes:
    """Without the records of what ranks use, which stand between the rows of every run. Damaged ones stay."""
    place = content.find(_USAGE)
    if place < 0:
        return content
    parts, done = [], 0
    while place >= 0:
        start, end = content.rfind(b"\n", 0, place) + 1, content.find(b"\n", place) + 1
        if body_of(content[start:end]) is not None:
            parts.append(content[done:start])
            done = end
        place = content.find(_USAGE, end)
    return b"".join([*parts, content[done:]])


def _decoder(names: Sequence[str]) -> Any:
    """Decodes a list of rows, and fails at a row with anything that is not expected. None if a name is too odd."""
    fields: list[Any] = [
        (f"metric_{place}", float, msgspec.field(default=float("nan"), name=name)) for place, name in enumerate(names)
    ]
    try:
        metrics = msgspec.defstruct("Metrics", fields, forbid_unknown_fields=True, gc=False)
    except ValueError:  # a name that would have to be escaped
        return None
    more: list[Any] = [(name, int) for name in ("attempt", "index", "rank")]
    more += [("stamp", float), ("elapsed", float), ("metrics", metrics), ("times", msgspec.Raw, msgspec.Raw())]
    row = msgspec.defstruct("Row", more, tag_field="kind", tag="row", forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(list[row]).decode  # type: ignore[valid-type]


def _bodies(array: NDArray[np.uint8], starts: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Where the JSON of each line begins: behind the second space, which follows the checksum and the length."""
    bodies = np.zeros_like(starts)
    for digits in range(1, _MOST_DIGITS + 1):
        spaces = np.minimum(starts + 9 + digits, array.size - 1)
        is_it = (bodies == 0) & (array[spaces] == ord(" "))
        bodies[is_it] = spaces[is_it] + 1
        if bodies.all():
            return bodies
    return None


def _are_whole(
    content: bytes,
    array: NDArray[np.uint8],
    starts: NDArray[np.intp],
    bodies: NDArray[np.intp],
    ends: NDArray[np.intp],
) -> bool:
    """Whether all lines match their checksums."""
    if int((starts + 8).max()) >= array.size:
        return False
    digits = _HEX[array[starts[:, None] + np.arange(8)]]
    if digits.max() > 15:
        return False
    said = (digits * _PLACES).sum(1, dtype=np.uint32)
    slices = (content[start:end] for start, end in zip(bodies.tolist(), ends.tolist(), strict=True))
    return bool((said == np.fromiter(map(crc32, slices), np.uint32, starts.size)).all())


def _as_list(
    array: NDArray[np.uint8], starts: NDArray[np.intp], bodies: NDArray[np.intp], ends: NDArray[np.intp]
) -> memoryview:
    """The lines as one list in JSON: what stands in front of a record becomes blank, and its end a comma."""
    text = array.copy()
    heads = np.arange(int((bodies - starts).max()))
    places = starts[:, None] + heads
    text[places[places < bodies[:, None]]] = ord(" ")
    text[ends] = ord(",")
    text[0], text[-1] = ord("["), ord("]")
    return text.data


def _table(rows: Iterable[Iterable[float]], count: int, width: int) -> Floats:
    return np.fromiter(chain.from_iterable(rows), np.float64, count * width).reshape(count, width)
