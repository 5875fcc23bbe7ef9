"""Parquet files: a block is a row group.

Footers are read once, by a few threads, when blocks are first asked for. What travels to workers is the number of
rows of each row group, not the footers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.air.errors import DataError
from paceline.air.words import counted
from paceline.data.block import Block, ReadRequest
from paceline.data.formats import check_unique, conform
from paceline.data.plan import cut
from paceline.data.sources.file_source import FileSource, Partitions, empty_chunk, one_file
from paceline.data.sources.listed_file import ListedFile, check_unchanged, open_checked
from paceline.data.sources.listing import LISTING_THREADS

if TYPE_CHECKING:
    from paceline.data.block import Chunk

_READ_ERRORS = (OSError, pa.ArrowException)
LARGE_ROW_GROUP = 64 << 20
_LOCAL_BUFFER = 256 << 10
_REMOTE_BUFFER = 4 << 20
"""Per column of a large row group: small enough for many columns, large enough that requests are few."""
_IDLE_FILES = 4
_NOT_PICKLED = ("_blocks", "_idle", "_idle_lock", "_metadata_lock")


@dataclass(frozen=True)
class RowGroup:
    """Where a block is, and what its footer says of it."""

    file: int
    number: int
    rows: int
    size: int


class ParquetSource(FileSource):
    """`columns`: only these. `on_error="skip"`: row groups and files that cannot be decoded count as empty.

    `partitions`: columns that are not in the files; None: those of the directories below what was given.
    """

    format = "parquet"

    def __init__(
        self,
        files: tuple[ListedFile, ...],
        columns: tuple[str, ...] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        partitions: Partitions | None = None,
    ) -> None:
        super().__init__(files)
        self._columns = columns
        self._skips = on_error == "skip"
        self._partitions = Partitions.below(files) if partitions is None else partitions
        self._row_groups: tuple[RowGroup, ...] | None = None
        self._large_files: set[int] = set()
        self._unreadable: dict[int, str] = {}
        """Of skipped files: why."""
        self._decoded: dict[int, str] = {}
        """Of row groups that have been tried: why they are skipped, or nothing if they are fine."""
        self._start_fresh()

    def _start_fresh(self) -> None:
        """What every process has for itself."""
        self._blocks: list[Block] = []
        self._idle: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._idle_lock = threading.Lock()
        self._metadata_lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in _NOT_PICKLED}
        return {**state, "_decoded": dict(self._decoded)}  # other threads may be adding to it

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_fresh()

    # -- metadata -------------------------------------------------------------------------

    def schema(self) -> pa.Schema:
        if self._schema is None:
            with self._metadata_lock:
                return super().schema()
        return self._schema

    def _find_schema(self) -> pa.Schema:
        """That of the first file."""
        for index, file in enumerate(self.files):
            try:
                opened = self._open(index)
            except DataError:
                if not self._skips or index == len(self.files) - 1:
                    raise
                continue
            stored = _plain(opened.schema_arrow)
            self._give_back(index, opened)
            check_unique(stored.names, file.label)
            self._partitions = self._partitions.without(stored.names)
            return _chosen_fields(pa.schema([*stored, *self._partitions.fields]), self._columns, file.label)
        raise AssertionError("a listing holds at least one file")

    def blocks(self) -> Sequence[Block]:
        if self._blocks:
            return self._blocks
        blocks = []
        for index, group in enumerate(self._groups()):
            name = f"{self.files[group.file].label}, row group {group.number}"
            rows = self._rows_after_skipping(index, group) if self._skips else group.rows
            blocks.append(Block(name, rows, group.size))
        if not any(block.rows is None for block in blocks):
            self._blocks = blocks
        return blocks

    def _rows_after_skipping(self, block: int, group: RowGroup) -> int | None:
        if block not in self._decoded:
            return None
        return 0 if self._decoded[block] else group.rows

    def _groups(self) -> tuple[RowGroup, ...]:
        if self._row_groups is None:
            schema = self.schema()
            with self._metadata_lock:
                if self._row_groups is None:
                    with ThreadPoolExecutor(min(LISTING_THREADS, len(self.files))) as pool:
                        footers = pool.map(lambda index: self._read_footer(index, schema), range(len(self.files)))
                        groups = tuple(group for groups in footers for group in groups)
                    self._large_files = {group.file for group in groups if group.size > LARGE_ROW_GROUP}
                    self._close_idle()  # how to open a file for its rows is known only now
                    self._row_groups = groups
        return self._row_groups

    def _read_footer(self, index: int, schema: pa.Schema) -> list[RowGroup]:
        try:
            opened = self._open(index)
        except DataError as error:
            if not self._skips:
                raise
            self._unreadable[index] = f"{error} The file was skipped."
            return []
        self._check_schema(_plain(opened.schema_arrow), schema, self.files[index].label)
        groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
        self._give_back(index, opened)
        return [RowGroup(index, number, group.num_rows, group.total_byte_size) for number, group in enumerate(groups)]

    def _check_schema(self, stored: pa.Schema, schema: pa.Schema, label: str) -> None:
        """Finds mixed schemas before any row is read."""
        wanted = [name for name in schema.names if name not in self._partitions.names]
        missing = _without(wanted, stored.names)
        surplus = _without(stored.names, wanted) if self._columns is None else []
        if missing or surplus:
            problem = f"has no column {missing[0]!r}" if missing else f"has a column {surplus[0]!r}"
            raise DataError(
                f"{label} {problem}, unlike the first file of this dataset, {self.files[0].label}. Read files with "
                "different columns as separate datasets, or choose the columns that all have: columns=[...]."
            )
        conform(empty_chunk(stored).select(wanted), _chosen_fields(schema, tuple(wanted), label), label)

    def skipped(self) -> list[str]:
        """What `on_error="skip"` has left out so far, and why."""
        return [*self._unreadable.values(), *(reason for reason in self._decoded.values() if reason)]

    # -- rows -----------------------------------------------------------------------------

    def files_at(self, block: int, start: int, rows: int) -> range:
        return one_file(self._groups()[block].file)

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        group = self._groups()[block]
        schema = self.schema()
        if self._skips and self._problem_of(block, group):
            return
        if request.columns is not None:
            schema = _chosen_fields(schema, request.columns, self.files[group.file].label)
        for chunk in cut(self._decode(group, schema, request), request.start, request.stop):
            yield self._conformed(chunk, schema, group.file)

    def _problem_of(self, block: int, group: RowGroup) -> str:
        """Why this row group is skipped; decodes all of it the first time, so that no part of a bad one is used."""
        if block not in self._decoded:
            try:
                for _ in self._decode(group, self.schema(), ReadRequest()):
                    pass
            except DataError as error:
                was = "was" if group.rows == 1 else "were"
                self._decoded[block] = f"{error} Its {counted(group.rows, 'row')} {was} skipped."
            else:
                self._decoded[block] = ""
        return self._decoded[block]

    def _decode(self, group: RowGroup, schema: pa.Schema, request: ReadRequest) -> Iterator[Chunk]:
        stored = [name for name in schema.names if name not in self._partitions.names]
        file = self._open(group.file)
        intact = True
        try:
            yield from file.iter_batches(
                batch_size=request.chunk_rows,
                row_groups=[group.number],
                columns=stored,
                use_threads=request.threads > 1,
            )
        except _READ_ERRORS as error:
            intact = False
            raise DataError(
                f"{self.files[group.file].label}, row group {group.number} cannot be decoded: {_one_line(error)}. "
                'Repair or leave out the file, or pass on_error="skip" to read_parquet.'
            ) from error
        finally:
            if intact:
                self._give_back(group.file, file)
            else:
                file.close(force=True)

    def _conformed(self, chunk: Chunk, schema: pa.Schema, file: int) -> Chunk:
        if self._partitions.fields:
            chunk = self._partitions.add_to(chunk, one_file(file), schema.names)
        chunk = conform(chunk, schema, self.files[file].label)
        if not len(schema) or chunk.schema.equals(schema, check_metadata=True):
            return chunk
        return pa.RecordBatch.from_arrays(chunk.columns, schema=schema)

    # -- open files -----------------------------------------------------------------------

    def _open(self, index: int) -> pq.ParquetFile:
        """The file, for this caller alone until it gives it back; its footer is not parsed for every row group."""
        with self._idle_lock:
            idle = self._idle.pop(index, None)
        if idle is not None:
            check_unchanged(self.files[index])
            return idle
        entry = self.files[index]
        opened = open_checked(entry, ranges=True)
        try:
            return pq.ParquetFile(opened, page_checksum_verification=True, **self._buffering(index))
        except _READ_ERRORS as error:
            opened.close()
            raise DataError(
                f"{entry.label} is not a readable Parquet file ({entry.size:,} bytes): {_one_line(error)}. "
                'Repair or leave out the file, or pass on_error="skip" to read_parquet.'
            ) from error

    def _buffering(self, index: int) -> dict[str, Any]:
        """How to read: large row groups page by page, so that memory does not grow with them."""
        remote = self.files[index].filesystem is not None
        if index in self._large_files:
            return {"pre_buffer": False, "buffer_size": _REMOTE_BUFFER if remote else _LOCAL_BUFFER}
        return {"pre_buffer": remote, "buffer_size": 0}  # fewer and larger requests; on local disks only overhead

    def _close_idle(self) -> None:
        with self._idle_lock:
            idle = [self._idle.popitem()[1] for _ in range(len(self._idle))]
        for file in idle:
            file.close(force=True)

    def _give_back(self, index: int, file: pq.ParquetFile) -> None:
        with self._idle_lock:
            self._idle[index] = file
            surplus = self._idle.popitem(last=False)[1] if len(self._idle) > _IDLE_FILES else None
        if surplus is not None:
            surplus.close(force=True)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without what pandas and other writers note beside names and types; any file may have nulls."""
    return pa.schema([field.remove_metadata().with_nullable(True) for field in schema])


def _chosen_fields(schema: pa.Schema, columns: tuple[str, ...] | None, label: str) -> pa.Schema:
    if columns is None:
        return schema
    known = set(schema.names)
    for column in columns:
        if column not in known:
            raise DataError(f"{label} has no column {column!r}; the columns are {schema.names}.")
    return pa.schema([schema.field(column) for column in columns])


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    known = set(others)
    return [name for name in names if name not in known]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")
