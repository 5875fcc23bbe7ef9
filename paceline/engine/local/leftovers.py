"""Ending what dead drivers left behind. Nothing is touched whose driver may be alive."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from paceline.engine.local import drivers, linux, processes
from paceline.engine.local.drivers import LiveDriver

SWEEP_WAIT_S = 2.0
"""A process in the middle of a disk access dies late; the next sweep finds it again."""
DRIVER_END_WAIT_S = 0.3
"""How long a driver may take from hanging up to its end."""
STOPPED_WAIT_S = 0.5
"""A stop takes its time to become visible; a warden that is not stopped ends its workers much sooner."""
PAUSE_S = 0.005


def sweep() -> int:
    """End every process of a driver that is dead; returns how many there were.

    This process and those that it descends from are spared. Costs a look into a directory if no driver was killed.
    """
    own = processes.lineage(os.getpid())
    return sum(len(_end(driver, own)) for driver in drivers.dead_drivers())


def sweep_after(identity: str, *spared: int) -> bool:
    """The same for the driver of this process; False if another process of that driver does it."""
    for driver in drivers.dead_drivers(only=identity):
        _end(driver, {os.getpid(), *spared})
        return True
    return False


def end_in_place_of_warden(identity: str) -> None:
    """Called in a worker whose driver is gone: if the warden is stopped, do its work. Else it does that itself."""
    if not drivers.has_ended(identity, DRIVER_END_WAIT_S):
        return
    deadline = time.monotonic() + STOPPED_WAIT_S
    while time.monotonic() < deadline:
        if processes.is_stopped(warden := os.getppid()):
            if sweep_after(identity, warden):
                os.kill(warden, signal.SIGKILL)  # At last: the system ends this process with it.
            return
        time.sleep(PAUSE_S)


def _end(driver: LiveDriver, spared: Collection[int]) -> set[int]:
    """End what carries the mark of a dead driver; its file goes once there is nothing left."""
    ended: set[int] = set()
    if not linux.has_pidfds():
        return ended
    deadline = time.monotonic() + SWEEP_WAIT_S
    while found := processes.end_marked(driver.identity, spared):
        ended.update(found)
        if time.monotonic() > deadline:
            return ended
        time.sleep(PAUSE_S)
    drivers.remove(driver.identity)
    return ended
