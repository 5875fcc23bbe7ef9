"""Fault points: named places where a test can make a process die or fail.

``PACELINE_FAULT="after_stage_manifest:rank=0:attempt=0:SIGKILL"`` kills rank 0's
process at that point of its first attempt; several faults are separated by ``;``.
Conditions are optional; ``times=n`` fires at the n-th passing (1 by default). With the
variable unset a fault point costs one attribute check.

Actions: a signal name (``SIGKILL``), ``exit=3``, ``raise=OSError``, or ``stop``
(SIGSTOP), always applied to the process that passes the point.
"""

from __future__ import annotations

import os
import signal

FAULT_VARIABLE = "PACELINE_FAULT"

role: dict[str, str] = {"rank": "driver", "attempt": "0"}
"""Who this process is; the worker's start-up and the driver's attempts fill it in."""

_passed: dict[str, int] = {}


def fault_point(name: str) -> None:
    """Fire the fault configured for this place, if there is one."""
    spec = os.environ.get(FAULT_VARIABLE)
    if not spec:
        return
    for entry in spec.split(";"):
        place, *conditions, action = entry.split(":")
        if place == name and _matches(entry, conditions):
            _fire(action)


def _matches(entry: str, conditions: list[str]) -> bool:
    wanted = dict(condition.split("=", 1) for condition in conditions)
    times = int(wanted.pop("times", "1"))
    if any(role.get(key) != value for key, value in wanted.items()):
        return False
    _passed[entry] = _passed.get(entry, 0) + 1
    return _passed[entry] == times


def _fire(action: str) -> None:
    verb, _, value = action.partition("=")
    if verb == "exit":
        os._exit(int(value))
    elif verb == "raise":
        raise {"OSError": OSError, "RuntimeError": RuntimeError}[value](f"injected by {FAULT_VARIABLE}")
    else:
        os.kill(os.getpid(), getattr(signal, verb if verb.startswith("SIG") else "SIGSTOP"))
