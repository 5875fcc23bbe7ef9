"""Checkpoints as a run commits them, and damage as a bad disk does it."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.air.checkpoint import Checkpoint
from paceline.storage.commit import commit
from paceline.storage.stager import Stager


def committed(content: Checkpoint, path: Path, number: int = 0) -> Path:
    """The directory of a checkpoint as a run commits it."""
    with Stager(path.with_name(f".{path.name}.staging")) as stager:
        content.write_files(stager, report={"timestamp": 0, "number": number, "iteration": number})
        stager.finish({"number": number})
    commit(stager.directory, path)
    return path


def flip(path: Path) -> None:
    """Change one bit in the middle, as a bad disk does: size and times stay."""
    content, status = bytearray(path.read_bytes()), path.stat()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
