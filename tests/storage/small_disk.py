"""Programs that run where the disk is nearly full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run_on_small_disk(program: str, tmp_path: Path) -> str:
    """Run a program whose first argument is a directory on a file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-Urm", "sh", "-c", script, "sh", str(disk), sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"needs a private file system: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout
