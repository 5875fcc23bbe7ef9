"""What only Linux offers, with what can be done elsewhere in its place."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
from functools import cache
from typing import Any

IS_LINUX = sys.platform.startswith("linux")

STACKS_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + (7 if hasattr(signal, "SIGRTMIN") else 0)
"""Makes a worker write its stacks: a number no library is known to use."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make every descendant whose parent dies a child of this process."""
    if IS_LINUX and _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent(parent: int) -> None:
    """Get SIGKILL when the parent dies, or end now if that has happened already."""
    if IS_LINUX:
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def show_variable(name: str, value: str) -> None:
    """Change a variable in the memory that /proc shows the environment from.

    That is where the program was started with it; a longer value would not fit there, and a shorter one is not needed.
    """
    if not IS_LINUX:
        return
    getenv = _libc().getenv
    getenv.restype = ctypes.c_void_p
    address = getenv(os.fsencode(name))
    if address is not None and len(ctypes.string_at(address)) == len(os.fsencode(value)):
        ctypes.memmove(address, os.fsencode(value), len(os.fsencode(value)))


def die_at_hangup(pipe_fd: int) -> None:
    """Be killed by the kernel when the other end of the pipe closes, even in the middle of an import."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(pipe_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe_fd, fcntl.F_SETFL, fcntl.fcntl(pipe_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe_fd], [], [], 0)[0]:  # It had happened before.
        os._exit(1)


def survive_hangup(pipe_fd: int) -> None:
    """Undo die_at_hangup."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    os.close(pipe_fd)


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there are none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


@cache
def has_pidfds() -> bool:
    pidfd = open_pidfd(os.getpid())
    if pidfd is not None:
        os.close(pidfd)
    return pidfd is not None


def send_signal(pid: int, pidfd: int | None, number: int) -> None:
    """Signal a process; by its pidfd, so that a recycled number is never hit."""
    try:
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def current_umask() -> int:
    """The umask; read without changing it where possible, because that is not thread-safe."""
    try:
        with open("/proc/self/status", "rb") as status:
            for line in status:
                if line.startswith(b"Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def memory_limit() -> int | None:
    """Bytes this machine or a control group lets our processes have."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in memory_groups():
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                limits.append(int(_read(f"{folder}/{name}")))
            except (OSError, ValueError):  # Not there, or "max".
                continue
    return min(limits)


def out_of_memory_kills() -> int:
    """How many processes of our own control group the kernel has killed for memory; 0 where it does not say.

    Counters of the machine, and of everything below another group, tell nothing about our processes. Our own group is
    the nearest one that counts: below it, memory is not watched.
    """
    for folder in memory_groups():
        counts = (_oom_kills_in(f"{folder}/{name}") for name in ("memory.events.local", "memory.oom_control"))
        count = next((count for count in counts if count is not None), None)
        if count is not None:
            return count
    return 0


def _oom_kills_in(path: str) -> int | None:
    try:
        counts = [int(line.split()[1]) for line in _read(path).splitlines() if line.startswith("oom_kill ")]
    except (OSError, ValueError):
        return None
    return counts[0] if counts else None


@cache
def memory_groups() -> tuple[str, ...]:
    """The folders of our control group and of those above it, nearest first."""
    folders: list[str] = []
    try:
        entries = [line.split(":", 2) for line in _read("/proc/self/cgroup").splitlines()]
    except OSError:
        return ()
    for _, controllers, path in entries:
        if controllers == "" or "memory" in controllers.split(","):
            root = "/sys/fs/cgroup" if controllers == "" else "/sys/fs/cgroup/memory"
            while True:
                folders.append(root + path.rstrip("/"))
                if path in ("/", ""):
                    break
                path = os.path.dirname(path)
    return tuple(folders)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def own_output() -> tuple[int, int]:
    """The descriptors of this process's output, to be shared. Standard error stands in for a closed one."""
    try:
        os.fstat(1)
    except OSError:
        return 2, 2
    return 1, 2
