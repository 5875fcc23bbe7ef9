"""A disk that is slow or fails, made by a library that is loaded before the C library (bad_disk.c)."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Trouble:
    """What happens to a call on files whose path contains a text."""

    call: str
    """write, fsync, fdatasync or close"""
    path: str
    error: int = 0
    """An errno; 0 for calls that succeed, but slowly."""
    which: int = 0
    """At which matching call of a process; 0: at each."""
    wait_s: float = 0.0
    bytes_per_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.call}:{self.path}:{self.error}:{self.which}:{self.wait_s * 1000}:{self.bytes_per_s}"


@dataclass(frozen=True)
class BadDisk:
    """Troubles for programs, and what they met with."""

    library: Path
    log: Path

    def env(self, *troubles: Trouble) -> dict[str, str]:
        """The variables for a program; its workers inherit them."""
        spec = ";".join(map(str, troubles))
        return {"LD_PRELOAD": str(self.library), "BAD_DISK": spec, "BAD_DISK_LOG": str(self.log)}

    def met(self, call: str) -> list[Path]:
        """The files on which a call has met with trouble, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [Path(line.partition(" ")[2]) for line in lines if line.startswith(f"{call} ")]


def make_bad_disk(folder: Path) -> BadDisk:
    """Skip where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make system calls fail")
    library = folder / "bad_disk.so"
    source = Path(__file__).with_name("bad_disk.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return BadDisk(library, folder / "bad_disk.log")
