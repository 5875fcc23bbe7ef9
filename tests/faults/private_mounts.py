"""Programs with a mount namespace of their own, in which a test can mount and unmount what it likes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

UNSHARE = ("unshare", "-Urm", "--propagation", "private")
MOUNT_SMALL = (*UNSHARE, "sh", "-c", 'mount -t tmpfs -o size=8m,mode=700 small "$0" && exec "$@"')
MOUNT_TINY = (*UNSHARE, "sh", "-c", 'mount -t tmpfs -o size=1m,mode=700 tiny "$0" && exec "$@"')
MOUNT_READ_ONLY = (*UNSHARE, "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"')


def needs(prefix: tuple[str, ...], place: Path) -> None:
    """Skip where the kernel or a container refuses a private mount."""
    place.mkdir(exist_ok=True)
    tried = subprocess.run([*prefix, str(place), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no private mounts here: {tried.stderr.strip()}")
