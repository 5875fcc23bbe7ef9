"""Faults that tests inject, at named points. Nothing else in the library makes things go wrong on purpose.

``PACELINE_FAULT="after_stage_manifest:rank=0:attempt=0:SIGKILL"`` kills rank 0's process at that point of its first
attempt. Several faults are separated by ``;``. A fault is a point, conditions, and an action.

Conditions are optional. A process has a `rank` ("driver" for the driver) and an `attempt`; some points add facts of
their own, such as the `step` of a report. A step is a report index: the first report of a run is step 1.
``first=n`` and ``last=n`` limit the steps. ``times=n`` fires at the n-th passing in a process only, ``every`` at each;
1 is the default. ``limit=n`` fires n times at most in all processes together.

Actions happen to the process that passes the point: a signal (``SIGKILL``), ``stop`` (SIGSTOP), ``exit=3``,
``raise=RuntimeError``, ``errno=ENOSPC``, ``sleep=0.5`` (``sleep=inf`` never returns), ``pace=1000000`` (so many bytes a
second), ``damage=flip`` (or ``truncate``, ``empty``, ``delete``: a file below the point's `path`), and
``call=module.function`` (with the fault's ``id``, if it has one).

``PACELINE_FAULT_NOTES`` names a directory in which each fault with an ``id`` notes that it fired. `paceline.testing`
sets both variables.
"""

from __future__ import annotations

import builtins
import errno
import fnmatch
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from paceline.air.rank_slot import role_of_thread

FAULT_VARIABLE = "PACELINE_FAULT"
NOTES_VARIABLE = "PACELINE_FAULT_NOTES"

role: dict[str, str] = {"rank": "driver", "attempt": "0"}
"""What this process is in a run; the worker's start-up and the driver's attempts fill it in."""

_passed: dict[str, int] = {}
_noted: set[str] = set()


@dataclass(frozen=True)
class Fault:
    """One configured fault."""

    text: str
    point: str
    conditions: Mapping[str, str]
    action: str

    def is_due(self, facts: Mapping[str, Any]) -> bool:
        """Whether it fires now; counts the passing if the conditions hold."""
        known = {**role, **role_of_thread(), **facts}
        for key, wanted in self.conditions.items():
            if key == "first" or key == "last":
                step = int(known.get("step", 0))
                if step < int(wanted) if key == "first" else step > int(wanted):
                    return False
            elif key not in _ABOUT_THE_FAULT and str(known.get(key)) != wanted:
                return False
        _passed[self.text] = _passed.get(self.text, 0) + 1
        times = self.conditions.get("times", "1")
        if times != "every" and _passed[self.text] != int(times):
            return False
        self._spare_the_test()
        return self._claims(known)

    def _spare_the_test(self) -> None:
        """Refuse to end or stop the process that has set the fault. It has not happened then, in a retry neither."""
        if self.conditions.get("spare") == str(os.getpid()) and self.action.partition("=")[0] not in _ACTIONS:
            raise RuntimeError(
                f"{self.action} would hit the process of the test itself. Faults that end or stop a process need "
                "workers in processes of their own: use another engine than 'inline'."
            )

    def _claims(self, known: Mapping[str, Any]) -> bool:
        """Note that it fires; False if it has fired as often as it may."""
        directory, name = os.environ.get(NOTES_VARIABLE), self.conditions.get("id")
        if not directory or not name:
            return True
        limit = self.conditions.get("limit")
        if limit is None and name in _noted:
            return True
        _noted.add(name)
        note = {"id": name, "point": self.point, "pid": os.getpid(), **{key: str(known[key]) for key in known}}
        for number in range(int(limit)) if limit else [f"of-{os.getpid()}"]:
            try:
                with open(os.path.join(directory, f"{name}.{number}"), "x") as file:
                    file.write(json.dumps(note))
                return True
            except FileExistsError:
                continue
            except FileNotFoundError:  # on a machine without that directory nothing can be noted or counted
                return True
        return limit is None


_ABOUT_THE_FAULT = {"times", "limit", "id", "file", "spare"}
"""Conditions that nothing is compared with."""


def fault_point(name: str, **facts: Any) -> None:
    """Fire the faults configured for this place, if there are any."""
    if spec := os.environ.get(FAULT_VARIABLE):
        _pass(spec, name, **facts)


def watched_point(name: str) -> Callable[..., None] | None:
    """What to call with the facts at each passing of a busy point; None if no fault is configured for it now."""
    spec = os.environ.get(FAULT_VARIABLE)
    if not spec or not any(fault.point == name or _needs_step(fault, name) for fault in parse(spec)):
        return None
    return partial(_pass, spec, name)


def _needs_step(fault: Fault, name: str) -> bool:
    """What is written for a report gets to know its step when the report is made."""
    return name == "report" and not fault.conditions.keys().isdisjoint(("step", "first", "last"))


def variables() -> dict[str, str]:
    """The environment that brings the configured faults to workers on other machines."""
    return {name: os.environ[name] for name in (FAULT_VARIABLE, NOTES_VARIABLE) if name in os.environ}


@lru_cache(maxsize=4)
def parse(spec: str) -> tuple[Fault, ...]:
    """The faults that a value of PACELINE_FAULT describes."""
    faults = []
    for text in filter(None, spec.split(";")):
        point, *conditions, action = text.split(":")
        faults.append(Fault(text, point, dict(each.split("=", 1) for each in conditions), action))
    return tuple(faults)


def _pass(spec: str, name: str, **facts: Any) -> None:
    if "step" in facts:
        role["step"] = str(facts["step"])  # For points that are passed on behalf of this report.
    for fault in parse(spec):
        if fault.point == name and fault.is_due(facts):
            _fire(fault, facts)


def _fire(fault: Fault, facts: Mapping[str, Any]) -> None:
    verb, _, value = fault.action.partition("=")
    act = _ACTIONS.get(verb)
    if act is not None:
        act(value, facts, fault.conditions)
        return
    if verb == "exit":
        os._exit(int(value))
    os.kill(os.getpid(), getattr(signal, verb if verb.startswith("SIG") else "SIGSTOP"))


def _raise(value: str, facts: Mapping[str, Any], conditions: Mapping[str, str]) -> None:
    raise getattr(builtins, value)(f"injected by {FAULT_VARIABLE}")


def _raise_errno(value: str, facts: Mapping[str, Any], conditions: Mapping[str, str]) -> None:
    number = getattr(errno, value)
    raise OSError(number, f"{os.strerror(number)} (injected by {FAULT_VARIABLE})")


def _sleep(value: str, facts: Mapping[str, Any], conditions: Mapping[str, str]) -> None:
    while value == "inf":
        time.sleep(3600)
    time.sleep(float(value))


def _pace(value: str, facts: Mapping[str, Any], conditions: Mapping[str, str]) -> None:
    time.sleep(facts.get("size", 0) / float(value))


def _call(value: str, facts: Mapping[str, Any], conditions: Mapping[str, str]) -> None:
    module, _, function = value.rpartition(".")
    named = [conditions["id"]] if "id" in conditions else []
    getattr(importlib.import_module(module), function)(*named)


def _damage(value: str, facts: Mapping[str, Any], conditions: Mapping[str, str]) -> None:
    """Change one file below the point's path: the first by name that is not empty, or the first that `file` matches."""
    root = Path(facts["path"])
    pattern = conditions.get("file", "*")
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    named = [path for path in files if fnmatch.fnmatch(str(path.relative_to(root)), pattern)]
    if not named:
        raise RuntimeError(f"{root} has no file like {pattern!r} to damage: {[path.name for path in files]}")
    target = named[0]
    if value == "delete":
        target.unlink()
    elif value == "flip":
        content = bytearray(target.read_bytes())
        content[len(content) // 2] ^= 4
        target.write_bytes(content)
    else:
        os.truncate(target, 0 if value == "empty" else target.stat().st_size - 1)


_ACTIONS: dict[str, Callable[[str, Mapping[str, Any], Mapping[str, str]], None]] = {
    "raise": _raise,
    "errno": _raise_errno,
    "sleep": _sleep,
    "pace": _pace,
    "call": _call,
    "damage": _damage,
}
