"""The files beside a run's journal. None of them may keep the run from being read or continued.

What is damaged is put aside, and written again from the journal where something reads it.
"""

from __future__ import annotations

import csv
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointError, StorageError
from paceline.storage.commit import quarantine
from paceline.storage.run_dir import RunDir

_DIRECTORIES = re.compile(r"logs|trackers|rank_\d+")

_decode = msgspec.json.Decoder(dict).decode


def free_lock_name(path: Path) -> list[str]:
    """Put a directory that has a lock's name aside: nobody can be holding it. Returns what to tell the user."""
    aside = path.with_name(f"{path.name}.corrupt")
    try:
        os.rename(f"{path}/", aside)  # fails for a file: another driver may have made one meanwhile
    except OSError:
        return []  # if something is in the way still, taking the lock says so
    return [f"{path.name} was a directory instead of a file; it was put aside as {aside.name}."]


def repair(run_dir: RunDir, *, continues: bool) -> list[str]:
    """Put aside what is damaged, so that it can be written again. Call it with the run's lock held.

    A run that `continues` writes rows. Returns what to tell the user.
    """
    notes: list[str] = []
    files = [run_dir.params, run_dir.result_json, run_dir.progress_csv, run_dir.error_txt]
    for path in [*files, *run_dir.logs_dir.glob("rank_*.log*")]:
        if path.is_dir():
            notes += _put_aside(path, "was a directory instead of a file")
    for path in run_dir.root.iterdir():
        if _DIRECTORIES.fullmatch(path.name) and not path.is_dir():
            notes += _put_aside(path, "was a file instead of a directory")
    for path, are_sound in ((run_dir.result_json, _are_json_objects), (run_dir.progress_csv, _are_table_rows)):
        if continues and not _is_sound(path, are_sound):
            notes += _put_aside(path, "was damaged and is written again from the journal")
    return notes


def checkpoint_at(path: Path, warn: Callable[[str], None]) -> Checkpoint:
    """The checkpoint in a run's directory. If its small metadata file is damaged, it is one of no particular class.

    Its content is checked when it is read.
    """
    try:
        return Checkpoint.from_directory(path)
    except (CheckpointError, OSError) as error:
        if not path.is_dir():
            raise StorageError(errno.ENOENT, "the checkpoint was deleted while it was in use", str(path)) from error
        warn(f"{path.name} is damaged: {error}")
        return Checkpoint(path)


def _put_aside(path: Path, problem: str) -> list[str]:
    try:
        return [f"{path.name} {problem}; what was there is now {quarantine(path).name}."]
    except StorageError as error:
        return [f"{path.name} {problem}, and could not be put aside: {error}"]


def _is_sound(path: Path, are_sound: Callable[[BinaryIO], bool]) -> bool:
    try:
        with path.open("rb") as file:
            return are_sound(file)
    except OSError:
        return not os.path.lexists(path)


def _are_json_objects(file: BinaryIO) -> bool:
    try:
        for line in file:
            if line.endswith(b"\n"):  # a killed driver leaves half a line at the end, which its logger cuts off
                _decode(line)
    except msgspec.DecodeError:
        return False
    return True


def _are_table_rows(file: BinaryIO) -> bool:
    """Whether every line has as many cells as the first."""
    whole_lines = (line.decode() for line in file if line.endswith(b"\n"))
    try:
        return len({len(cells) for cells in csv.reader(whole_lines)}) <= 1
    except UnicodeDecodeError:
        return False
    except csv.Error:
        return True  # a cell longer than the reader takes
