"""The files of offline W&B runs: how many rows they have, and whether they are complete.

W&B writes in blocks of 32 KiB, so a killed driver leaves a file without its last rows. The format is that of LevelDB's
log: a header of 7 bytes, then blocks with parts of records, which are protobuf messages.
"""

from __future__ import annotations

import glob
import importlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER = 7
_BLOCK = 32768
_PART = struct.Struct("<IHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4
_CLOCKS = (time.localtime, time.gmtime)


def rows_in(directory: Path, run_id: str) -> int:
    """One more than the last step in the files of a run below a directory; 0 without any."""
    return max((_last_step(path) + 1 for path in _files(directory, run_id)), default=0)


def wait_for_free_name(directory: Path, run_id: str) -> None:
    """W&B names a directory after the second: one that continues a run at once would replace the earlier rows."""
    taken = {path.parent.name for path in _files(directory, run_id)}
    while {f"offline-run-{time.strftime('%Y%m%d_%H%M%S', now())}-{run_id}" for now in _CLOCKS} & taken:
        time.sleep(0.05)


def wait_for_end(directory: Path, run_id: str, timeout_s: float) -> None:
    """W&B finishes a run before its file is complete: wait for the last record."""
    deadline = time.monotonic() + timeout_s
    newest = max(_files(directory, run_id), key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return
    read_size = -1
    while True:
        size = newest.stat().st_size
        if size != read_size and "exit" in (kind for kind, _ in messages_in(newest)):
            return
        read_size = size
        if time.monotonic() > deadline:
            raise TimeoutError(f"W&B has not completed {newest} within {timeout_s:.0f} s")
        time.sleep(0.02)


def messages_in(path: Path) -> Iterator[tuple[str, Any]]:
    """The kind of each record of a file, and its message."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")  # made at import: nothing for mypy
    for body in records_in(path.read_bytes()):
        record = messages.Record.FromString(body)
        kind = record.WhichOneof("record_type")
        yield kind, getattr(record, kind or "", None)


def _files(directory: Path, run_id: str) -> list[Path]:
    name = glob.escape(run_id)
    return list(directory.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb"))


def _last_step(path: Path) -> int:
    return max((message.step.num for kind, message in messages_in(path) if kind == "history"), default=-1)


def records_in(data: bytes) -> Iterator[bytes]:
    """The whole records of a file; an incomplete one at the end is left out."""
    place, parts = _HEADER, b""
    while place + _PART.size <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _PART.size:  # too little for another part: zeros
            place += left
            continue
        _, length, kind = _PART.unpack_from(data, place)
        part = data[place + _PART.size : place + _PART.size + length]
        if kind == 0 or len(part) < length:
            return
        place += _PART.size + length
        parts = part if kind in (_WHOLE, _FIRST) else parts + part
        if kind in (_WHOLE, _LAST):
            yield parts
