"""The warden: a small process between the driver and its workers, for the driver's whole life.

It forks workers from an interpreter that has the framework imported already, and it is the
parent, by adoption too, of everything they start: so it can always end all of it. It stays
single-threaded, runs nothing of the user's and unpickles nothing.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
import weakref
from dataclasses import dataclass, field
from typing import Any

from paceline.engine.frames import FrameSocket, close_all
from paceline.engine.local import child, drivers, linux, messages, processes

DYING_POLL_S = 0.001
MAX_DYING_POLL_S = 0.05
"""A process in the middle of a disk access dies late; waiting for it must not cost a core."""


@dataclass
class WardenGroup:
    """The workers of one group, as long as anything of it lives."""

    alive: dict[int, int] = field(default_factory=dict)
    """Process id to rank of the workers that have not been reaped."""
    sessions: set[int] = field(default_factory=set)
    """Each worker leads a session of its own; what it starts is mostly in it."""
    claimed: set[int] = field(default_factory=set)
    """Processes seen below a worker of this group: still its own after that worker's end."""
    dying: bool = False


def main(payload: bytes) -> None:
    settings = messages.decode_settings(payload)
    Warden(settings).run()


class Warden:
    def __init__(self, settings: messages.WardenSettings) -> None:
        self._settings = settings
        self._control = FrameSocket(socket.socket(fileno=settings.control_fd))
        self._groups: dict[int, WardenGroup] = {}
        self._token = os.environ[processes.WARDEN_VARIABLE].partition("-")[0]
        self._driver = os.environ[processes.DRIVER_VARIABLE]
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_write, False)
        self._quit = False
        self._told_to_quit = False

    def run(self) -> None:
        """Serve until the driver says so or is gone; then leave nothing behind."""
        try:
            self._set_up()
            while not self._quit:
                self._wait()
                self._reap()
                self._end_dying_groups()
        finally:
            self._kill_everything()
            if not self._told_to_quit and drivers.has_ended(self._driver, drivers.DRIVER_END_WAIT_S):
                drivers.sweep_after(self._driver)  # What a stopped warden, or the driver itself, has left.
        os._exit(0)

    def _set_up(self) -> None:
        linux.adopt_orphans()
        # A batch system sends these to every process of a job. What becomes of the workers, the driver decides.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        for fd in self._own_fds():
            os.set_inheritable(fd, False)
        linux.die_at_hangup(self._settings.lifeline_fd)
        gc.disable()  # What imports make stays: looking for garbage among it costs a tenth of the time.
        before = dict(os.environb)
        error = self._preload()
        # Imports set variables now and then.
        messages.change_environment(*messages.difference(dict(os.environb), before))
        linux.survive_hangup(self._settings.lifeline_fd)  # From here on there is somebody to take along.
        self._tell(messages.Loaded(error))
        self._thread_pools = ThreadPools()
        self._forget_exit_work()
        gc.enable()
        gc.freeze()  # Or the first collection in each worker would copy most of the memory.

    def _preload(self) -> str | None:
        """Import what workers will need. A module that is not installed is left to the worker to miss."""
        for name in ("cloudpickle", *self._settings.preload):
            error = self._import(name)
            if error is not None:
                return error
        return None

    def _import(self, name: str) -> str | None:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not (name + ".").startswith(f"{error.name}."):
                return traceback.format_exc()
        except BaseException:
            return traceback.format_exc()
        return None

    def _forget_exit_work(self) -> None:
        """Libraries undo their registrations at exit; in a worker, which just ends, that is time lost."""
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False

    def _own_fds(self) -> list[int]:
        fds = [self._control.fileno(), self._wakeup_read, self._wakeup_write]
        return fds if self._settings.driver_fd is None else [*fds, self._settings.driver_fd]

    # The driver's wishes

    def _wait(self) -> None:
        """Sleep until something happens; take the driver's requests."""
        poller = select.poll()
        poller.register(self._control.sock, select.POLLIN | (select.POLLOUT if self._control.unsent else 0))
        poller.register(self._wakeup_read, select.POLLIN)
        if self._settings.driver_fd is not None:
            poller.register(self._settings.driver_fd, select.POLLIN)
        dying = any(group.dying for group in self._groups.values())
        for fd, mask in poller.poll(DYING_POLL_S * 1000 if dying else None):
            if fd == self._wakeup_read:
                os.read(self._wakeup_read, 4096)
            elif fd == self._settings.driver_fd:
                self._quit = True
            elif mask & select.POLLOUT:
                self._control.flush()
        self._take_requests()

    def _take_requests(self) -> None:
        while not self._quit:
            frames = self._control.read()
            for _, body, fds in frames:
                request = messages.decode_to_warden(body)
                if isinstance(request, messages.Spawn):
                    self._spawn(request, *fds)
                elif isinstance(request, messages.KillGroup):
                    self._groups.setdefault(request.group, WardenGroup()).dying = True
                else:
                    self._quit = self._told_to_quit = True
            if self._control.closed:
                self._quit = True
            if not frames:
                return

    def _tell(self, message: messages.FromWarden, fds: tuple[int, ...] = ()) -> None:
        self._control.post(messages.CONTROL, messages.encode(message), fds)

    # Workers

    def _spawn(self, request: messages.Spawn, channel_fd: int, crash_fd: int, *output_fds: int) -> None:
        warden_pid = os.getpid()
        self._thread_pools.set(request.pool_threads)
        try:
            pid = os.fork()
        except OSError as error:
            close_all((channel_fd, crash_fd, *output_fds))
            self._tell(messages.SpawnFailed(request.group, request.rank, f"fork failed: {error}"))
            return
        if pid == 0:
            child.become_worker(request, channel_fd, crash_fd, output_fds, warden_pid, self._own_fds())
        close_all((channel_fd, crash_fd, *output_fds))
        group = self._groups.setdefault(request.group, WardenGroup())
        group.alive[pid] = request.rank
        group.sessions.add(pid)
        pidfd = linux.open_pidfd(pid)  # Nobody but this thread reaps: the number is still the worker's.
        self._tell(messages.Spawned(request.group, request.rank, pid), () if pidfd is None else (pidfd,))
        if pidfd is not None:
            os.close(pidfd)

    def _reap(self) -> None:
        """Collect every child that has ended, adopted ones too; tell about workers."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            now = time.monotonic_ns()
            for number, group in self._groups.items():
                rank = group.alive.pop(pid, None)
                if rank is not None:
                    scale = 1 if sys.platform == "darwin" else 1024
                    self._tell(messages.Exited(number, rank, status, usage.ru_maxrss * scale, now))

    # Ends

    def _end_dying_groups(self) -> None:
        for number in [number for number, group in self._groups.items() if group.dying]:
            members = self._everything_of(number)
            if members:
                processes.kill_all(members)
                self._reap()
                members = self._everything_of(number)
            if not members:
                del self._groups[number]
                self._tell(messages.GroupGone(number))
                if not self._groups:
                    processes.kill_all(processes.with_descendants(processes.children_of(os.getpid())))

    def _everything_of(self, number: int) -> list[int]:
        """The group's workers, what is below them, and orphans that came from them."""
        group, workers = self._groups[number], self._workers()
        orphans = [pid for pid in processes.children_of(os.getpid()) if pid not in workers]
        roots = [*group.alive, *(pid for pid in orphans if self._came_from(pid, number))]
        members = processes.with_descendants(roots)
        group.claimed.update(members)
        return members

    def _workers(self) -> set[int]:
        return {pid for group in self._groups.values() for pid in group.alive}

    def _came_from(self, orphan: int, number: int) -> bool:
        group = self._groups[number]
        if len(self._groups) == 1 or orphan in group.claimed or processes.session_of(orphan) in group.sessions:
            return True
        return processes.group_of(orphan) == (self._token, number)

    def _kill_everything(self) -> None:
        """Kill and reap every descendant, however it hid, until there is none."""
        poller = select.poll()
        poller.register(self._wakeup_read, select.POLLIN)
        pause = DYING_POLL_S
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            processes.kill_all(processes.with_descendants([*self._workers(), *processes.children_of(os.getpid())]))
            if poller.poll(pause * 1000):  # One of them ended: go on at once.
                os.read(self._wakeup_read, 4096)
            pause = min(2 * pause, MAX_DYING_POLL_S)


class ThreadPools:
    """The pools of libraries that the warden has loaded.

    They are set in the warden before a fork, not in the worker: in a forked process
    OpenBLAS answers by starting its threads anew, and those spin for tens of milliseconds.
    """

    def __init__(self) -> None:
        self._controller: Any = None
        self._limiter: Any = None
        self._limit: int | None = None
        if "numpy" in sys.modules:
            try:
                import threadpoolctl
            except ImportError:
                return
            self._controller = threadpoolctl.ThreadpoolController()  # Looks through all libraries: only once.

    def set(self, limit: int | None) -> None:
        """Limit the pools of this process and of those forked from it; None undoes that."""
        if self._controller is None or limit == self._limit:
            return
        if self._limiter is not None:
            self._limiter.restore_original_limits()
        self._limiter = None if limit is None else self._controller.limit(limits=limit)
        self._limit = limit
