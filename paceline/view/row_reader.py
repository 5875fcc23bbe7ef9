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

from paceline.air.constants import VALIDATION
from paceline.run.records import FORMAT, AttemptStarted, Header, Row, Validated
from paceline.storage.journal import records_in
from paceline.storage.journal_parts import RemoteJournal
from paceline.view.column_table import NOT_FINITE, ColumnTable, Floats, Part, number_parts
from paceline.view.plain_rows import PlainRows

STEP, TIME, ELAPSED = "step", "time", "elapsed"
"""The columns of `axes`: the report's index, seconds since the epoch, seconds of training."""

_ROW, _ATTEMPT, _HEADER = b'{"kind":"row"', b'{"kind":"attempt"', b'{"kind":"run"'
_VALIDATED = b'{"kind":"validated"'
_MARKS = (_ATTEMPT, _HEADER, _VALIDATED)
_RANK, _RANK_0 = b'"rank":', b'"rank":0,'
_BEGINNING = 64
"""Bytes of a row: its rank is among them, and no metric is."""
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
        self._plain = PlainRows()
        self.axes = axes
        self.metrics = metrics
        self.elapsed_before = 0.0
        """Seconds of training up to the beginning of the current attempt."""
        self.attempts: list[tuple[int, int]] = []
        """The number of each attempt, and the report that it began after."""
        self.cuts = 0
        """How often rows changed: superseded by a later attempt, or completed by a validation."""

    def read(self, content: bytes, offset: int, only: str | None = None) -> int:
        """Take in bytes that begin at an offset of the journal. Returns how many of them were whole records.

        With `only`, all metrics but this one are passed over.
        """
        content = content[: content.rfind(b"\n") + 1]
        if only is None and self._add_plain(content):
            return len(content)
        lines = content.split(b"\n")[:-1]
        bodies = [line[line.find(b" ", 9) + 1 :] for line in lines]
        if not _are_whole(lines, bodies):
            found = list(records_in(content.splitlines(keepends=True), offset, str(self._journal)))
            bodies = [body for body, _ in found]
            content = content[: found[-1][1] - offset] if found else b""
        completed: list[Validated] = []
        for mark, rows in _by_mark(bodies, content):
            if mark is not None and mark.startswith(_VALIDATED):
                record = FORMAT.decode(mark, self._journal)
                completed += [record] if isinstance(record, Validated) else []
            elif mark is not None:
                self._complete(completed, only)  # before its row may be superseded
                completed = []
                self._begin(mark)
            self._add(rows, only)
        self._complete(completed, only)
        return len(content)

    def _complete(self, validations: list[Validated], only: str | None) -> None:
        """Add the metrics of validations to the rows that they belong to."""
        steps = self.axes.column(STEP) if self.axes.rows else np.empty(0)
        late: dict[str, list[tuple[int, float]]] = {}
        for each in validations:
            place = int(np.searchsorted(steps, each.index))
            is_there = place < steps.size and steps[place] == each.index
            if is_there and self._attempt_of(each.index) in (None, each.attempt):
                self.cuts += 1
                for name, values, _ in number_parts([{VALIDATION: each.metrics}]):
                    if only in (None, name):
                        late.setdefault(name, []).append((place, float(values[0])))
        self.metrics.put(late)

    def _attempt_of(self, index: int) -> int | None:
        """Which attempt has reported the row; None if the beginning of the journal was not read."""
        return next((number for number, start in reversed(self.attempts) if start < index), None)

    def _add_plain(self, content: bytes) -> bool:
        """Take in rows of the usual kind, quickly; False if they are not."""
        names = list(self.metrics.columns())
        self._plain.expect(names)
        found = self._plain.read(content)
        if found is None:
            return False
        axes, metrics = found
        parts: list[Part] = [(name, values, None) for name, values in zip(names, metrics.T, strict=True)]
        self._append(axes.T, parts, None)
        return True

    def expect(self, rows: float) -> None:
        """About so many rows there will be soon."""
        self.axes.expected = self.metrics.expected = int(rows)

    def _begin(self, mark: bytes) -> None:
        """A new attempt repeats what comes after its beginning."""
        record = FORMAT.decode(mark, self._journal)
        if not isinstance(record, AttemptStarted | Header):
            return
        start = record.start_index if isinstance(record, AttemptStarted) else 0
        if isinstance(record, AttemptStarted):
            self.attempts.append((record.attempt, start))
        self.elapsed_before = record.start_time_s if isinstance(record, AttemptStarted) else 0.0
        if self.axes.rows:
            kept = int(np.searchsorted(self.axes.column(STEP), start, "right"))
            if kept < self.axes.rows:
                self.cuts += 1
                self.axes.cut(kept)
                self.metrics.cut(kept)

    def _add(self, bodies: list[bytes], only: str | None) -> None:
        bodies = self._of_rank_0(bodies)
        if not bodies:
            return
        self._append(*self._decoded(bodies), only)

    def _append(self, axes: Floats, parts: list[Part], only: str | None) -> None:
        index, stamp, elapsed = axes
        self.axes.append(
            index.size, [(STEP, index, None), (TIME, stamp, None), (ELAPSED, elapsed + self.elapsed_before, None)]
        )
        self.metrics.append(index.size, parts if only is None else [part for part in parts if part[0] == only])

    def _of_rank_0(self, bodies: list[bytes]) -> list[bytes]:
        rows = [body for body in bodies if body.startswith(_ROW)]
        found = [body for body in rows if _RANK_0 in body[:_BEGINNING]]
        if len(found) < len(rows) and not all(_RANK in body[:_BEGINNING] for body in rows):
            return [body for body in rows if self._row(body).rank == 0]  # whoever wrote it has another order of fields
        return found

    def _decoded(self, bodies: list[bytes]) -> tuple[Floats, list[Part]]:
        """(index, stamp and elapsed; the metrics) of rows of any kind."""
        rows: list[_PlainRow] | list[_PlainRow | Row]
        try:
            rows = _decode_all(b"[%b]" % b",".join(bodies))
        except msgspec.DecodeError:
            rows = [self._row(body) for body in bodies]
        axes = np.array([(row.index, row.stamp, row.elapsed) for row in rows], np.float64).T
        return axes, number_parts([row.reduced or row.metrics for row in rows])

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


def _by_mark(bodies: list[bytes], content: bytes) -> Iterator[tuple[bytes | None, list[bytes]]]:
    """What came first; then each record of an attempt or a validation, with what followed it."""
    if not any(mark in content for mark in _MARKS):
        yield None, bodies
        return
    marks = [place for place, body in enumerate(bodies) if body.startswith(_MARKS)]
    yield None, bodies[: marks[0]] if marks else bodies
    for place, behind in zip(marks, [*marks[1:], len(bodies)], strict=True):
        yield bodies[place], bodies[place + 1 : behind]
