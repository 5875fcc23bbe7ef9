"""The drivers of this user on this machine: one file each, which its driver holds locked while it lives.

So others can find what runs, and the next driver can find what a killed one left behind. The files are in a directory
that nobody else can write. A driver's identity is the name of its file, and is in the environment of every process that
it starts: process id, start time, and a few random letters.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import re
import select
import signal
import stat
import struct
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from paceline.air.process import boot_id, pid_namespace, start_time
from paceline.engine.local import linux, processes
from paceline.engine.local.processes import DRIVER_VARIABLE
from paceline.storage.files import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE

_IDENTITY = re.compile(r"(\d+)-(\d+)-[0-9a-f]{8}")
_MOST_TRIES = 100
_DRIVER_BYTE, _SWEEPER_BYTE = 0, 1
"""What is locked: by the driver, and by the one of its processes that ends the others when it is dead."""


@dataclass(frozen=True)
class LiveDriver:
    """What a driver's file says."""

    identity: str
    boot_id: str
    pid_namespace: str
    runs: tuple[tuple[str, str], ...] = ()
    """(run id, directory) of the runs that it drives now."""

    @property
    def pid(self) -> int:
        return _process_of(self.identity)[0]

    @property
    def is_here(self) -> bool:
        """Whether its process id means the same process to us."""
        return self.boot_id == boot_id() and self.pid_namespace == pid_namespace()


def is_running(identity: str) -> bool:
    """Whether the driver's process is there, for a driver of this boot and pid namespace."""
    pid, started = _process_of(identity)
    return start_time(pid) == started


def open_driver(identity: str) -> int | None:
    """The pidfd of a driver, unless it is gone."""
    pidfd = linux.open_pidfd(_process_of(identity)[0])
    if pidfd is not None and not is_running(identity):
        os.close(pidfd)
        return None
    return pidfd


def has_ended(identity: str, timeout: float) -> bool:
    """Whether the driver is gone. Its connections close a moment before that can be seen: wait for it."""
    pidfd = open_driver(identity)
    if pidfd is None:
        return not is_running(identity)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(timeout * 1000))
    finally:
        os.close(pidfd)


def _process_of(identity: str) -> tuple[int, int]:
    """Process id and start time; (-1, -1) if this is not an identity."""
    found = _IDENTITY.fullmatch(identity)
    return (int(found[1]), int(found[2])) if found else (-1, -1)


# -- this driver --------------------------------------------------------------------------


class _Registration:
    """This process as a driver."""

    def __init__(self) -> None:
        self.identity = f"{os.getpid()}-{start_time(os.getpid()) or 0}-{os.urandom(4).hex()}"
        self.lock = threading.RLock()
        self._fd: int | None = None
        self._path = ""
        self._runs: list[tuple[str, str]] = []
        self._head = b""
        self.problem = ""

    def begin(self) -> None:
        """Create and lock this driver's file. If that fails, note the problem: the run works without the file."""
        if self._fd is not None or self.problem or not linux.IS_LINUX:
            return
        try:
            folder = runtime_dir(create=True)
            head = {"boot_id": boot_id(), "pid_namespace": pid_namespace()}
            self._head = json.dumps(head).encode() + b"\n"
            self._path = os.path.join(folder, self.identity)
            self._fd = _create_locked(self._path, self._head)
        except OSError as error:
            self.problem = str(error)
            return
        atexit.register(self.end)

    def end(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = None

    def leave_to_parent(self) -> None:
        """In a forked child: the lock ends with the parent."""
        atexit.unregister(self.end)
        if self._fd is not None:
            os.close(self._fd)

    def change_runs(self, *, add: tuple[str, str] | None = None, remove: str | None = None) -> None:
        with self.lock:
            self.begin()
            self._runs = [run for run in self._runs if run[1] != remove]
            if add is not None:
                self._runs.append(add)
            if self._fd is not None:
                with contextlib.suppress(OSError):  # a full disk: what is listed is not up to date
                    body = json.dumps(self._runs).encode() + b"\n"
                    os.pwrite(self._fd, body, len(self._head))
                    os.ftruncate(self._fd, len(self._head) + len(body))


_registration: _Registration | None = None
_making = threading.Lock()


def _this() -> _Registration:
    global _registration
    with _making:
        if _registration is None:
            _registration = _Registration()
        return _registration


def mark() -> dict[str, str]:
    """The variable that marks what this driver starts; from here on the driver has a file."""
    this = _this()
    with this.lock:
        this.begin()
    return {DRIVER_VARIABLE: this.identity}


def enter_run(run_id: str, directory: str) -> str:
    """Say that this process drives a run. Returns what is wrong if others cannot find that out."""
    this = _this()
    this.change_runs(add=(run_id, directory))
    return this.problem


def leave_run(directory: str) -> None:
    _this().change_runs(remove=directory)


def _forget_in_forked_child() -> None:
    global _registration, _making
    _making = threading.Lock()
    if _registration is not None:
        _registration.leave_to_parent()
        _registration = None


os.register_at_fork(after_in_child=_forget_in_forked_child)


# -- all drivers --------------------------------------------------------------------------


def live_drivers() -> list[LiveDriver]:
    """The drivers of this user that live. Only looks."""
    drivers = []
    for identity, fd in _open_files(os.O_RDONLY):
        driver = _read(identity, fd)
        if driver is not None and _is_locked(fd) and (not driver.is_here or is_running(identity)):
            drivers.append(driver)
    return drivers


def left_behind() -> list[LiveDriver]:
    """The drivers that have provably died without removing their file. Only looks: nothing is swept."""
    found = []
    for identity, fd in _open_files(os.O_RDONLY):
        driver = _read(identity, fd)
        if driver is None or _is_locked(fd):
            continue
        if driver.boot_id != boot_id() or (driver.is_here and not is_running(identity)):
            found.append(driver)
    return found


def dead_drivers(only: str | None = None) -> Iterator[LiveDriver]:
    """The drivers that have provably died without removing their file.

    The caller removes the file with `remove` once nothing of that driver is left. Processes of one driver must not end
    each other while they look for the rest: each asks for `only` that driver, and one of them gets it.
    """
    for identity, fd in _open_files(os.O_RDWR):
        if only is not None and identity != only:
            continue
        if _is_locked(fd) or (only is not None and not _try_lock(fd, _SWEEPER_BYTE)):
            continue
        driver = _read(identity, fd)
        if driver is None:
            _remove_unwritten(identity, fd)
        elif driver.boot_id != boot_id():
            remove(identity)  # nothing of it can be left
        elif driver.is_here and not is_running(identity):
            yield driver


def _remove_unwritten(identity: str, fd: int) -> None:
    """The file of a driver that died before it started anything, unless it is just about to write."""
    if _try_lock(fd, _DRIVER_BYTE) and _read(identity, fd) is None:
        remove(identity)


def remove(identity: str) -> None:
    """Remove the file of a dead driver."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(runtime_dir(), identity))


def runtime_dir(*, create: bool = False) -> str:
    """The directory of the files. Raises OSError if there is none that is this user's alone."""
    parent = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(parent) and _is_own_dir(parent):
        folder = os.path.join(parent, "paceline")
    else:
        folder = f"/tmp/paceline-{os.geteuid()}"
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, PRIVATE_DIR_MODE)
    if not _is_own_dir(folder) and os.path.lexists(folder):
        raise PermissionError(
            f"{folder} is not a directory that belongs to this user alone (mode 0700). Remove it, or set "
            "XDG_RUNTIME_DIR to a directory of your own"
        )
    return folder


def _is_own_dir(path: str) -> bool:
    """A real directory of this user that nobody else can look into or write."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _open_files(flags: int) -> Iterator[tuple[str, int]]:
    """The files of drivers, each open until the next is asked for. Files of other users are skipped."""
    try:
        folder = runtime_dir()
        names = [name for name in os.listdir(folder) if _IDENTITY.fullmatch(name)]
    except OSError:
        return
    for name in names:
        try:
            fd = os.open(os.path.join(folder, name), flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                yield name, fd
        finally:
            os.close(fd)


def _read(identity: str, fd: int) -> LiveDriver | None:
    """None if the driver died before it wrote who it is."""
    head, _, rest = os.pread(fd, 1 << 20, 0).partition(b"\n")
    try:
        facts = json.loads(head)
        boot, namespace = str(facts["boot_id"]), str(facts["pid_namespace"])
    except (ValueError, TypeError, KeyError):
        return None
    try:
        runs = tuple((str(run_id), str(directory)) for run_id, directory in json.loads(rest.partition(b"\n")[0]))
    except (ValueError, TypeError):  # none yet, or it is being rewritten
        runs = ()
    return LiveDriver(identity, boot, namespace, runs)


def _create_locked(path: str, content: bytes) -> int:
    """A new file with a lock on it. Whoever looks for dead drivers may remove it before it is locked: then another."""
    for _ in range(_MOST_TRIES):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE_MODE)
        try:
            if _try_lock(fd, _DRIVER_BYTE) and os.fstat(fd).st_nlink:
                os.pwrite(fd, content, 0)
                return fd
        except BaseException:  # a file system without such locks, or a full one
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        os.close(fd)
    raise OSError(f"{path} keeps being removed")


def _try_lock(fd: int, byte: int) -> bool:
    """Lock one byte of the file for this open file description, unless somebody else has it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(byte))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_locked(fd: int) -> bool:
    """Whether its driver holds the file, or may hold it: where that cannot be seen, nobody is provably dead."""
    try:
        lock = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(_DRIVER_BYTE))
    except OSError:
        return True
    return bool(struct.unpack_from("h", lock)[0] != fcntl.F_UNLCK)


def _flock(byte: int) -> bytes:
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)  # struct flock


# -- ending what dead drivers left behind: nothing is touched whose driver may be alive -------------

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
    return sum(len(_end(driver, processes.lineage(os.getpid()))) for driver in dead_drivers())


def sweep_after(identity: str, *spared: int) -> bool:
    """The same for the driver of this process; False if another process of that driver does it."""
    for driver in dead_drivers(only=identity):
        _end(driver, {os.getpid(), *spared})
        return True
    return False


def end_in_place_of_warden(identity: str) -> None:
    """Called in a worker whose driver is gone: if the warden is stopped, do its work. Else it does that itself."""
    if not has_ended(identity, DRIVER_END_WAIT_S):
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
    remove(driver.identity)
    return ended
