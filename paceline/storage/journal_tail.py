"""The last records of a journal, without reading all of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from paceline.storage.files import storage_error
from paceline.storage.journal import _body, decode_record

_TAIL = 256 * 1024
"""Bytes: many times the record that says how a run ended."""


def read_tail(path: Path) -> list[dict[str, Any]]:
    """The whole records among the last bytes of a journal, in order; a torn line is left out."""
    try:
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _TAIL)
            file.seek(start)
            lines = file.read().splitlines(keepends=True)
    except OSError as error:
        raise storage_error(error, path, "reading the journal") from error
    bodies = [_body(line) for line in lines]
    return [decode_record(body) for body in bodies if body is not None]
