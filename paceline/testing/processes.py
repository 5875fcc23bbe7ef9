"""Kill, stop and interrupt real processes without guessing at time.

A test starts a `Driver` (a Python program in a process of its own), waits until the program or
one of its workers has said that it is at a certain place (`Marks`), and then does to it what
the test is about. Waiting always means waiting for something that can be seen, up to a deadline
that only guards against hanging.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from paceline.air.faults import FAULT_VARIABLE

Found = TypeVar("Found")

GUARD_S = 60.0
"""How long to wait for something that happens at once on an idle machine."""


def wait_for(look: Callable[[], Found], what: str, timeout: float = GUARD_S) -> Found:
    """Call `look` until it gives something true; fails naming `what` when the guard expires."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:.0f} s in vain for: {what}")
        time.sleep(0.002)


def fault(point: str, action: str = "SIGKILL", **conditions: object) -> dict[str, str]:
    """The environment that makes a process fail at a fault point: ``fault("before_ack", rank="driver")``."""
    wanted = [f"{key}={value}" for key, value in conditions.items()]
    return {FAULT_VARIABLE: ":".join([point, *wanted, action])}


class Marks:
    """A directory in which processes leave word for each other and for the test.

    Each process appends to a file of its own, so that a word is never torn by another writer.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def say(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "time": time.monotonic_ns(), **facts}) + "\n"
        descriptor = os.open(self.directory / f"{os.getpid()}.marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def read(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """Everything said of `event` with these facts, in the order of time."""
        said = []
        for path in self.directory.glob("*.marks"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    said.append(json.loads(line))
        wanted = {"event": event, **facts}
        return sorted(
            (mark for mark in said if all(mark.get(key) == value for key, value in wanted.items())),
            key=lambda mark: int(mark["time"]),
        )

    def wait(self, event: str, count: int = 1, **facts: Any) -> list[dict[str, Any]]:
        """Wait until `event` has been said `count` times."""

        def enough() -> list[dict[str, Any]]:
            said = self.read(event, **facts)
            return said if len(said) >= count else []

        return wait_for(enough, f"{count} x {event} {facts or ''} in {self.directory}")

    def claim(self, name: str) -> bool:
        """True for the first process that asks for `name`, ever."""
        try:
            os.close(os.open(self.directory / f"{name}.claim", os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            return False
        return True

    def open_gate(self, name: str) -> None:
        (self.directory / f"{name}.gate").touch()

    def pass_gate(self, name: str) -> None:
        """Wait until the test opens the gate."""
        wait_for((self.directory / f"{name}.gate").exists, f"gate {name}")


@dataclass(frozen=True)
class Process:
    """One process, told apart from a later one with the same id by its start time."""

    pid: int
    start: int

    @property
    def state(self) -> str:
        """The kernel's one-letter state (R, S, T, Z, ...); empty when it is gone."""
        status = _status(self.pid)
        return status[0] if status and int(status[19]) == self.start else ""

    @property
    def alive(self) -> bool:
        return self.state not in ("", "Z", "X")

    @property
    def command(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_text().replace("\0", " ").strip()
        except OSError:
            return ""


def process(pid: int) -> Process | None:
    """The process that has this id now."""
    status = _status(pid)
    return Process(pid, int(status[19])) if status else None


def children(pid: int) -> list[Process]:
    """The live processes whose parent is `pid`."""
    return [each for each, parent in _process_table() if parent == pid]


def descendants(pid: int) -> list[Process]:
    """Every live process below `pid`, by descent."""
    table = _process_table()
    found: list[Process] = []
    parents = {pid}
    while parents:
        below = [each for each, parent in table if parent in parents]
        found += below
        parents = {each.pid for each in below}
    return found


def _process_table() -> list[tuple[Process, int]]:
    """Every live process with its parent's id."""
    table = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (status := _status(int(entry))) and status[0] not in "ZX":
            table.append((Process(int(entry), int(status[19])), int(status[1])))
    return table


def _status(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the command, which may hold anything; empty if gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _python_path() -> str:
    """Where a driver finds this very paceline, installed or not."""
    here = str(Path(__file__).parents[2])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


class Driver:
    """A Python program in a process (and session) of its own; its output goes to a file."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        output: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is a command that runs the program, such as ``("setpriv", "--reuid=65534")``."""
        self.output = output
        with output.open("ab") as stream:
            self._popen = subprocess.Popen(
                [*prefix, sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, "PYTHONPATH": _python_path(), **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._known: set[Process] = set()

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whatever the test did, nothing of this driver outlives it."""
        self.family()
        self._popen.kill()
        self._popen.wait()
        for member in self._known:
            if member.alive:
                os.kill(member.pid, signal.SIGKILL)
        if error is not None:
            error.add_note(f"output of the driver:\n{self.text()[-4000:]}")

    def family(self) -> list[Process]:
        """Every live process that descends from the driver; each one is remembered."""
        alive = descendants(self.pid)
        self._known.update(alive)
        return alive

    def known(self) -> list[Process]:
        """Everything `family` has ever seen."""
        return list(self._known)

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL after taking note of the family."""
        self.family()
        self._popen.kill()
        self._popen.wait()

    def wait(self, timeout: float = GUARD_S) -> int:
        """The exit status; negative for a signal."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver still runs after {timeout:.0f} s:\n{self.text()[-4000:]}") from None

    def text(self) -> str:
        return self.output.read_text(errors="replace")
