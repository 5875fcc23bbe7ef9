"""The curves of a run: its steps, times and metrics as arrays, which follow the journal as it grows."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from paceline.air.errors import StorageError
from paceline.run.records import no_journal
from paceline.storage.files import storage_error
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import RemoteJournal
from paceline.storage.run_dir import RunDir, resolve_storage
from paceline.view import column_cache
from paceline.view.column_table import Column, ColumnTable
from paceline.view.decimate import Smoothing
from paceline.view.row_reader import ELAPSED, STEP, TIME, RowReader

Floats = NDArray[np.float64]

MOST_BYTES = 128 << 20
"""Of one run's metrics in memory. Columns beyond it are read from the journal when they are asked for."""
CHUNK_BYTES = 1 << 20
_NO_LIMIT = 1 << 62
_WORTH_CACHING = 20_000
"""Rows. Fewer are read from the journal within a few hundredths of a second."""
_MOST_SMOOTHED = 8
_MOST_EXTRA = 4


class RunSeries:
    """The rows of one run as columns. Several threads may use it.

    Arrays that were handed out never change; `refresh()` makes new ones. When a retry supersedes rows, or a validation
    completes one, `generation` counts up: what was read from earlier arrays is not right any more then.
    """

    def __init__(self, path: str | Path, filesystem: Any = None, *, most_bytes: int = MOST_BYTES) -> None:
        place = resolve_storage(path)
        self._journal: Path | RemoteJournal
        if isinstance(place, Path):
            self._journal = RunDir(place).journal
        else:
            self._journal = RemoteJournal(FsspecFilesystem(place, filesystem), "journal.jsonl")
        self._most_bytes = most_bytes
        self._lock = threading.RLock()
        self._restarts = 0
        self._inode: tuple[int, int] | None = None
        self._begin()

    @property
    def rows(self) -> int:
        """How many there are, as of the last refresh."""
        return self._reader.axes.rows

    @property
    def generation(self) -> int:
        """Counts how often rows disappeared or changed."""
        return self._restarts + self._reader.cuts

    @property
    def nbytes(self) -> int:
        """About what the arrays take in memory."""
        columns = len(self._reader.metrics.columns()) + 3 + len(self._smoothed) + len(self._extra)
        return 1024 + columns * (200 + 8 * self.rows)

    def reading(self) -> contextlib.AbstractContextManager[Any]:
        """While this is entered, columns, axes and counts belong together."""
        return self._lock

    def refresh(self) -> int:
        """Take in what the journal has now; returns how many rows there are."""
        with self._lock:
            if isinstance(self._journal, Path):
                self._refresh_local(self._journal)
            else:
                content = self._journal.read_from(self._offset)
                self._offset += self._reader.read(content, self._offset)
            return self.rows

    def metrics(self) -> list[str]:
        """The names of all metrics that were a number at least once; nested ones are "a/b"."""
        return self._reader.metrics.names()

    def column(self, name: str) -> Floats:
        """The values of a metric; KeyError if there is none. NaN: not reported. Infinity: reported, but not finite."""
        with self._lock:
            if name in self._reader.metrics.left_out:
                return self._read_again(name)
            return self._reader.metrics.column(name)

    def steps(self) -> Floats:
        """The index of each report."""
        return self._axis(STEP)

    def times(self) -> Floats:
        """Seconds since the epoch."""
        return self._axis(TIME)

    def elapsed(self) -> Floats:
        """Seconds of training, attempts before the current one included."""
        return self._axis(ELAPSED)

    def smoothed(self, name: str, weight: float) -> Floats:
        """The debiased moving average of a metric. What was smoothed before is not smoothed again."""
        with self._lock:
            values = self.column(name)
            kept = self._smoothed.get((name, weight))
            if kept is None or kept[0] != self.generation:
                kept = self._smoothed[name, weight] = (self.generation, Smoothing(weight), Column(np.empty(0)))
            self._smoothed.move_to_end((name, weight))
            if len(self._smoothed) > _MOST_SMOOTHED:
                self._smoothed.popitem(last=False)
            _, smoothing, column = kept
            done = column.view().size
            column.extend_to(values.size)[:] = smoothing.extend(values[done:])
            return column.view()

    def _axis(self, name: str) -> Floats:
        with self._lock:
            return self._reader.axes.column(name) if self.rows else np.empty(0)

    def _begin(self) -> None:
        self._offset = 0
        self._saved_rows = 0
        self._reader = RowReader(self._journal, ColumnTable(_NO_LIMIT), ColumnTable(self._most_bytes))
        self._smoothed: OrderedDict[tuple[str, float], tuple[int, Smoothing, Column]] = OrderedDict()
        self._extra: OrderedDict[str, tuple[int, int, Column]] = OrderedDict()
        """Columns for which there was no room, with their generation and up to where the journal was read for them."""

    def _refresh_local(self, journal: Path) -> None:
        try:
            with open(journal, "rb") as file:
                found = os.fstat(file.fileno())
                inode = (found.st_dev, found.st_ino)
                if self._inode not in (None, inode) or found.st_size < self._offset:  # another file has its name now
                    self._restarts = self.generation + 1
                    self._begin()
                if self._inode is None and found.st_size:
                    self._load(journal)
                self._inode = inode
                if found.st_size == self._offset:
                    return
                self._offset = _read(self._reader, file, self._offset, found.st_size)
        except FileNotFoundError:
            raise no_journal(RunDir(journal.parent)) from None
        except StorageError:
            raise
        except OSError as error:
            raise storage_error(error, journal, "reading the journal") from error
        if self.rows - self._saved_rows >= max(_WORTH_CACHING, self._saved_rows // 5):
            self._save(journal)

    def _load(self, journal: Path) -> None:
        found = column_cache.load(journal)
        if found is None:
            return
        stored, columns = found
        axes = dict(zip(stored.axes, columns[: len(stored.axes)], strict=True))
        metrics = dict(zip(stored.metrics, columns[len(stored.axes) :], strict=True))
        self._reader.axes = ColumnTable(_NO_LIMIT, axes, stored.rows)
        self._reader.metrics = ColumnTable(self._most_bytes, metrics, stored.rows)
        self._reader.metrics.left_out = dict.fromkeys(stored.left_out)
        self._reader.elapsed_before = stored.elapsed_before
        self._reader.attempts = stored.attempts
        self._offset, self._saved_rows = stored.offset, stored.rows

    def _save(self, journal: Path) -> None:
        reader = self._reader
        columns = [*reader.axes.columns().values(), *reader.metrics.columns().values()]
        stored = column_cache.Stored(
            journal=str(journal),
            offset=self._offset,
            rows=self.rows,
            axes=list(reader.axes.columns()),
            metrics=list(reader.metrics.columns()),
            left_out=list(reader.metrics.left_out),
            elapsed_before=reader.elapsed_before,
            attempts=reader.attempts,
        )
        column_cache.save(stored, columns)
        self._saved_rows = self.rows

    def _read_again(self, name: str) -> Floats:
        """A column for which there was no room, from the journal up to where the others are."""
        kept = self._extra.pop(name, None)
        if kept is None or kept[0] != self.generation:
            kept = (self.generation, 0, Column(np.empty(0)))
        _, offset, column = kept
        if offset < self._offset:
            reader = RowReader(self._journal, ColumnTable(_NO_LIMIT), ColumnTable(_NO_LIMIT))
            if isinstance(self._journal, Path):
                with open(self._journal, "rb") as file:
                    _read(reader, file, offset, self._offset, only=name)
            else:
                reader.read(self._journal.read_from(offset)[: self._offset - offset], offset, only=name)
            added = column.extend_to(column.view().size + reader.axes.rows)
            if name in reader.metrics:
                added[:] = reader.metrics.column(name)
        self._extra[name] = (self.generation, self._offset, column)
        if len(self._extra) > _MOST_EXTRA:
            self._extra.popitem(last=False)
        return column.view()


def _read(reader: RowReader, file: BinaryIO, offset: int, end: int, only: str | None = None) -> int:
    """Read from an offset to the last whole record before `end`; returns where that ends."""
    begin, rows, length = offset, reader.axes.rows, CHUNK_BYTES
    while offset < end:
        file.seek(offset)
        content = file.read(min(length, end - offset))
        size = reader.read(content, offset, only)
        offset += size
        if size:
            length = CHUNK_BYTES
            reader.expect(rows + (reader.axes.rows - rows) * (end - begin) / (offset - begin))
        elif b"\n" in content or len(content) < length:
            break  # a torn end, or a line that is not complete yet
        else:
            length *= 2  # a record longer than a chunk
    return offset
