"""How far a tracker has come with a run: `<run>/trackers/<name>.json`.

It is written when the service has acknowledged something, so it never promises more than is there.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
from msgspec import Struct

from paceline.storage.files import make_private_dirs, storage_error, write_whole
from paceline.trackers.tracker import Outcome


class Cursor(Struct, kw_only=True, frozen=True):
    """A place in the journal of a run, and the run that the service has for it."""

    version: int = 1
    run_id: str | None = None
    """The id that the service gave it."""
    name: str = ""
    """What the run is called."""
    offset: int = 0
    """Behind the last record of the journal that was handed over."""
    rows: int = 0
    """How many rows were before it, those that the journal has lost and the service has included."""
    attempt: int = -1
    """The attempt that the last of them belong to; -1 before the first."""
    elapsed: float = 0.0
    """The clock of that attempt at the last row."""
    outcome: Outcome | None = None
    """How the service's run was closed; None while it is open."""
    is_opening: bool = False
    """The service was asked for a run, and nobody knows the answer."""


def read_cursor(path: Path) -> Cursor:
    """The cursor in a file; a new one if there is none, or if it is damaged: the service may still know what it has."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Cursor)
    except FileNotFoundError:
        return Cursor()
    except (OSError, msgspec.DecodeError):
        return Cursor(is_opening=True)


def mark_unsent(path: Path, name: str) -> None:
    """Leave a file for a run of which nothing was sent, so that it is seen that its rows are missing."""
    with contextlib.suppress(OSError):  # it exists, or the rows are all that can be kept
        make_private_dirs(path.parent)
        with path.open("xb") as file:
            file.write(msgspec.json.encode(Cursor(name=name)))


def write_cursor(path: Path, cursor: Cursor) -> None:
    """Replace the file, at once or not at all."""
    try:
        make_private_dirs(path.parent)
        write_whole(path, msgspec.json.encode(cursor))
    except OSError as error:
        raise storage_error(error, path, "writing how far a tracker has come") from error
