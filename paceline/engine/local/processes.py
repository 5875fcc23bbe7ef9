"""Finding processes: who descends from whom, to which worker an orphan belonged, and which driver started it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable

from paceline.air.process import pid_namespace, start_time, stat_of
from paceline.engine.local import linux

DRIVER_VARIABLE = "PACELINE_DRIVER"
"""The identity of a driver, in the environment of everything that it and its workers start."""
WARDEN_VARIABLE = "PACELINE_WARDEN"
"""A warden's token and the number of a group, in the environment of everything below that warden.

/proc shows the environment that a program was executed with. A worker is only forked, so it changes this variable in
place: then /proc shows its group for itself and for what it forks, however that hides.
"""
NO_GROUP = 0
"""The number that a warden carries itself."""


def warden_mark(token: str, group: int = NO_GROUP) -> str:
    """The value of WARDEN_VARIABLE; always of one length, because it is changed in place."""
    return f"{token}-{group:08x}"


def join_group(group: int) -> None:
    """In a fork of a warden: carry the mark of a group from here on."""
    mark = warden_mark(os.environ[WARDEN_VARIABLE].partition("-")[0], group)
    linux.show_variable(WARDEN_VARIABLE, mark)
    os.environ[WARDEN_VARIABLE] = mark


def own_marks() -> dict[str, str]:
    """What this process was marked with."""
    return {name: os.environ[name] for name in (DRIVER_VARIABLE, WARDEN_VARIABLE) if name in os.environ}


def is_stopped(pid: int) -> bool:
    """By a signal, or by a debugger."""
    return stat_of(pid)[:1] in (["T"], ["t"])


def lineage(pid: int) -> set[int]:
    """The process itself, its parent, and so on."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = stat_of(pid)
        pid = int(fields[1]) if fields else 0
    return found


def children_of(pid: int) -> list[int]:
    """The direct children of a process, zombies included."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children.extend(int(child) for child in file.read().split())
    except FileNotFoundError:
        if not children and os.path.isdir(f"/proc/{pid}/task"):
            return [child for child, parent in _parents().items() if parent == pid]
    except (OSError, ValueError):
        pass
    return children


def with_descendants(pids: Iterable[int]) -> list[int]:
    """The given processes and everything below them, parents before children."""
    found: list[int] = []
    seen: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            found.append(pid)
            waiting.extend(children_of(pid))
    return found


def _parents() -> dict[int, int]:
    """Parent of every process, from the process table: for kernels that do not list children."""
    return {pid: int(fields[1]) for pid in _all_processes() if (fields := stat_of(pid))}


def _all_processes() -> list[int]:
    """Every process id; none where the system has no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _variables_of(pid: int) -> dict[str, str]:
    """The environment that a process was executed with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0")]
    except OSError:
        return {}
    return {name: value for name, _, value in entries}


def group_of(pid: int) -> tuple[str, int] | None:
    """The warden's token and the number of the group that a process came from."""
    token, _, group = _variables_of(pid).get(WARDEN_VARIABLE, "").partition("-")
    return (token, int(group, 16)) if len(group) == 8 else None


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes that cannot have been replaced by others: descendants of this one."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # Gone already, or a program with rights of its own.
            continue


def kill_remains(sessions: Collection[int], warden: str) -> int:
    """Kill what workers left behind when their warden is dead; returns how many there were.

    What they started is in a worker's session, or carries the mark of that warden.
    """

    def belongs(pid: int) -> bool:
        group = group_of(pid)
        return session_of(pid) in sessions or (group is not None and group[0] == warden)

    return len(_kill_own(belongs, spared=[os.getpid()]))


def marked_by(driver: str) -> list[int]:
    """This user's processes that carry the mark of a driver. Only looks."""
    return [pid for pid in _all_processes() if _is_own(pid) and _variables_of(pid).get(DRIVER_VARIABLE) == driver]


def end_marked(driver: str, spared: Collection[int]) -> list[int]:
    """Kill the processes of this driver, as far as they can be found; returns those that were found.

    These carry the driver's mark, or no mark at all but are in a session that was made below one of its wardens.
    Wardens are left to the end: while they live, nothing that is below them can get out of sight.
    """
    wardens: set[int] = set()
    sessions: set[int] = set()
    for pid in _all_processes():
        variables = _variables_of(pid) if _is_own(pid) else {}
        if variables.get(DRIVER_VARIABLE) == driver and WARDEN_VARIABLE in variables:
            sessions.add(session_of(pid) or pid)
            if variables[WARDEN_VARIABLE].endswith(warden_mark("", NO_GROUP)):
                wardens.add(pid)

    def belongs(pid: int) -> bool:
        carried = _variables_of(pid).get(DRIVER_VARIABLE)
        return carried == driver or (carried is None and session_of(pid) in sessions)

    return _kill_own(belongs, {*spared, *wardens}) or _kill_own(belongs, spared)


def _kill_own(belongs: Callable[[int], bool], spared: Collection[int]) -> list[int]:
    """Kill this user's processes that belong to somebody; returns which.

    Each is opened first, looked at then, and killed by that descriptor: so it is the one that was looked at.
    """
    killed = []
    for pid in _all_processes():
        if pid in spared or not _is_own(pid) or not belongs(pid):
            continue
        pidfd = linux.open_pidfd(pid)
        try:
            if (pidfd is not None or not linux.has_pidfds()) and _is_own(pid) and belongs(pid):
                linux.send_signal(pid, pidfd, signal.SIGKILL)
                killed.append(pid)
        finally:
            if pidfd is not None:
                os.close(pidfd)
    return killed


def _is_own(pid: int) -> bool:
    """Whether a process is alive, this user's, and in our pid namespace."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():  # Root's if it has rights of its own.
            return False
    except OSError:
        return False
    return start_time(pid) is not None and pid_namespace(pid) == pid_namespace()
