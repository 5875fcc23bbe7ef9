"""A clock for leases, and drivers that tests of leases need."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from paceline.storage import lock as lock_module
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.lock import describe_this_process

HANG_GUARD_S = 60
POLL_S = 20.0
"""Fewer requests to the server of the tests than with the usual pause."""


class Clock:
    """The time as leases see it. What others do while a contender waits is `meanwhile`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waited = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def pause(self, seconds: float) -> None:
        self.waited += seconds
        self.now += seconds
        self.meanwhile()


@contextmanager
def machine(name: str) -> Iterator[None]:
    """What happens in the block happens on another machine, as far as leases can tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock_module, "boot_id", lambda: f"boot of {name}")
        patch.setattr(socket, "gethostname", lambda: name)
        yield


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_behind(store: FsspecFilesystem, **changes: Any) -> str:
    """The lease of a driver that does nothing any more."""
    text = json.dumps({**describe_this_process(), "token": "its own", "renewals": 3, **changes})
    store.write_text("lease/000001", text)
    return text


def holder(store: FsspecFilesystem) -> dict[str, Any]:
    newest = store.list("lease")[-1]
    found: dict[str, Any] = json.loads(store.read_text(newest))
    return found
