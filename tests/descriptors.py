"""The files, sockets and pipes that this process has open."""

from __future__ import annotations

import contextlib
import os


def open_descriptors() -> set[tuple[int, str]]:
    """Each open descriptor and what it refers to.

    Look only at what is new since an earlier call: what other tests left to be closed may go at any time.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed the directory, or closed meanwhile
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found


def open_files() -> list[str]:
    """What the open descriptors refer to."""
    return [target for _, target in open_descriptors()]
