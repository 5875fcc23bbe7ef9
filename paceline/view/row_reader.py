"""The rows of a run from the bytes of its journal, many at a time.

This is `run/history.py` for pictures: only rank 0's numbers, and fast enough for a million rows. Each line is checked
against its checksum. What is not a row is decoded by the run's own record format.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from paceline.run.records import FORMAT, AttemptStarted, Header, Row
from paceline.storage.journal import records_in
from paceline.storage.journal_parts import RemoteJournal
from paceline.view.column_table import NOT_FINITE, ColumnTable, number_parts

STEP, TIME, ELAPSED = "step", "time", "elapsed"
"""The columns of `axes`: the report's index, seconds since the epoch, seconds of training."""

_ROW, _ATTEMPT, _HEADER = b'{"kind":"row"', b'{"kind":"attempt"', b'{"kind":"run"'
_RANK_0 = b'"rank":0'
_NOT_JSON = re.compile(rb'(?<=[^\\]":)-?(?:NaN|Infinity)(?=[,}])')
_IN_ITS_PLACE = repr(NOT_FINITE).encode()


class _PlainRow(msgspec.Struct, tag_field="kind", tag="row", gc=False):
    """The fields of a Row that are needed here: what is not decoded costs nothing."""

    index: int
    rank: int
    stamp: float
    elapsed: float
    metrics: dict[str, Any]
    reduced: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_PlainRow).decode
_decode_all = msgspec.json.Decoder(list[_PlainRow]).decode


class RowReader:
    """Puts the surviving rows of a journal into two tables, chunk after chunk."""

    def __init__(self, journal: Path | RemoteJournal, axes: ColumnTable, metrics: ColumnTable) -> None:
        self._journal = journal
        self.axes = axes
        self.metrics = metrics
        self.elapsed_before = 0.0
        """Seconds of training up to the beginning of the current attempt."""
        self.cuts = 0
        """How often rows were superseded by a later attempt."""

    def read(self, content: bytes, offset: int, only: str | None = None) -> int:
        """Take in bytes that begin at an offset of the journal. Returns how many of them were whole records.

        With `only`, all metrics but this one are passed over.
        """
        content = content[: content.rfind(b"\n") + 1]
        lines = content.split(b"\n")[:-1]
        bodies = [line[line.find(b" ", 9) + 1 :] for line in lines]
        if not _are_whole(lines, bodies):
            found = list(records_in(content.splitlines(keepends=True), offset, str(self._journal)))
            bodies = [body for body, _ in found]
            content = content[: found[-1][1] - offset] if found else b""
        for mark, rows in _by_attempt(bodies, content):
            if mark is not None:
                self._begin(mark)
            self._add(rows, only)
        return len(content)

    def _begin(self, mark: bytes) -> None:
        """A new attempt repeats what comes after its beginning."""
        record = FORMAT.decode(mark, self._journal)
        if not isinstance(record, AttemptStarted | Header):
            return
        start = record.start_index if isinstance(record, AttemptStarted) else 0
        self.elapsed_before = record.start_time_s if isinstance(record, AttemptStarted) else 0.0
        if self.axes.rows:
            kept = int(np.searchsorted(self.axes.column(STEP), start, "right"))
            if kept < self.axes.rows:
                self.cuts += 1
                self.axes.cut(kept)
                self.metrics.cut(kept)

    def _add(self, bodies: list[bytes], only: str | None) -> None:
        rows = self._rows([body for body in bodies if _RANK_0 in body and body.startswith(_ROW)])
        if not rows:
            return
        self.axes.append(
            len(rows),
            [
                (STEP, np.array([row.index for row in rows], np.float64), None),
                (TIME, np.array([row.stamp for row in rows], np.float64), None),
                (ELAPSED, np.array([row.elapsed for row in rows], np.float64) + self.elapsed_before, None),
            ],
        )
        parts = number_parts([row.reduced or row.metrics for row in rows])
        self.metrics.append(len(rows), parts if only is None else [part for part in parts if part[0] == only])

    def _rows(self, bodies: list[bytes]) -> list[_PlainRow] | list[_PlainRow | Row]:
        """Those of rank 0."""
        try:
            rows = _decode_all(b"[%b]" % b",".join(bodies))
        except msgspec.DecodeError:
            return [row for row in map(self._row, bodies) if row.rank == 0]
        return [row for row in rows if row.rank == 0]

    def _row(self, body: bytes) -> _PlainRow | Row:
        """One that may hold NaN and infinities, which are not JSON."""
        with contextlib.suppress(msgspec.DecodeError):
            return _decode(_NOT_JSON.sub(_IN_ITS_PLACE, body))
        record = FORMAT.decode(body, self._journal)  # slower, but reads everything, or says what is wrong
        assert isinstance(record, Row)
        return record


def _are_whole(lines: list[bytes], bodies: list[bytes]) -> bool:
    """Whether all lines match their checksums: as `journal.body_of`, but for many lines at once."""
    try:
        said = np.frombuffer(bytes.fromhex(b"".join([line[:8] for line in lines]).decode()), ">u4")
    except ValueError:
        return False
    return said.size == len(lines) and bool((said == np.array(list(map(crc32, bodies)), np.uint32)).all())


def _by_attempt(bodies: list[bytes], content: bytes) -> Iterator[tuple[bytes | None, list[bytes]]]:
    """What came first; then the record of each attempt, with what followed it."""
    if _ATTEMPT not in content and _HEADER not in content:
        yield None, bodies
        return
    marks = [place for place, body in enumerate(bodies) if body.startswith((_ATTEMPT, _HEADER))]
    yield None, bodies[: marks[0]] if marks else bodies
    for place, behind in zip(marks, [*marks[1:], len(bodies)], strict=True):
        yield bodies[place], bodies[place + 1 : behind]
