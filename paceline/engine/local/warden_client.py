"""The driver's handle on one warden: starts it, talks to it, ends it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from paceline.air.attachment import anonymous_file
from paceline.engine import protocol
from paceline.engine.frames import FrameSocket, close_all, socket_pair
from paceline.engine.local import drivers, linux, messages, processes
from paceline.engine.local.boot import boot_command, write_boot_config
from paceline.engine.reactor import WRITE, Reactor

END_TIMEOUT_S = 5.0
REMAINS_PAUSE_S = 0.005
MAX_DIAGNOSIS = 16 * 1024
UNKNOWN_RUN = "0" * 32
"""In the place where /proc shows the run of a forked worker; as long as the ids of runs."""


class WardenListener(Protocol):
    """A group that hears about its workers."""

    def on_warden_message(self, message: messages.FromWarden, fds: tuple[int, ...]) -> None: ...

    def on_warden_lost(self) -> None: ...


class WardenClient:
    """One running warden. It is no child of any particular thread and outlives the one that made it."""

    def __init__(self, preload: Sequence[str], reactor: Reactor) -> None:
        self.preload = tuple(preload)
        self.loaded = False
        self.load_error: str | None = None
        self.lost = False
        self.token = os.urandom(8).hex()
        self.environment = messages.with_variables(
            dict(os.environb),
            {
                processes.WARDEN_VARIABLE: processes.warden_mark(self.token),
                protocol.RUN_ID_VARIABLE: UNKNOWN_RUN,
                **drivers.mark(),
            },
        )
        """What the warden, and so every worker, starts with."""
        self._reactor = reactor
        self._listeners: dict[int, WardenListener] = {}
        self._last_words = ""
        with contextlib.ExitStack() as on_error:
            self._diagnosis_fd = anonymous_file("paceline-warden")
            on_error.callback(os.close, self._diagnosis_fd)
            ours, theirs = socket_pair()
            on_error.callback(ours.close)
            with theirs:
                self._process, self._lifeline_fd = self._launch(theirs.fileno())
            on_error.pop_all()
        self._control = FrameSocket(ours)
        reactor.add(self._control.fileno(), self._on_control)

    def _launch(self, control_fd: int) -> tuple[subprocess.Popen[bytes], int]:
        """The process, and our end of its lifeline. Whatever happens, nothing that is only the warden's stays open."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as on_error:
            lifeline_fd, our_lifeline_fd = os.pipe()
            theirs.callback(os.close, lifeline_fd)
            on_error.callback(os.close, our_lifeline_fd)
            driver_fd = linux.open_pidfd(os.getpid())
            if driver_fd is not None:
                theirs.callback(os.close, driver_fd)
            settings = messages.WardenSettings(control_fd, driver_fd, lifeline_fd, list(self.preload))
            payload = messages.encode(settings)
            config_fd = write_boot_config("paceline.engine.local.warden", absolute_sys_path(), payload)
            theirs.callback(os.close, config_fd)
            process = subprocess.Popen(
                boot_command(config_fd),
                pass_fds=[fd for fd in (control_fd, driver_fd, lifeline_fd, config_fd) if fd is not None],
                start_new_session=True,
                cwd="/",
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._diagnosis_fd,
            )
            on_error.pop_all()
        return process, our_lifeline_fd

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether it has no workers."""
        return not self._listeners

    def listen(self, group: int, listener: WardenListener) -> None:
        self._listeners[group] = listener

    def forget(self, group: int) -> None:
        self._listeners.pop(group, None)

    def tell(self, message: messages.ToWarden, fds: Sequence[int] = ()) -> None:
        self._reactor.check_owner()
        with self._reactor.lock:
            if not self.lost:
                self._reactor.post(self._control, messages.CONTROL, messages.encode(message), fds)

    def _on_control(self, mask: int) -> None:
        if mask & WRITE:
            self._reactor.flush(self._control)
        for _, body, fds in self._control.read():
            message = messages.decode_from_warden(body)
            if isinstance(message, messages.Loaded):
                self.loaded = True
                self.load_error = message.error
                continue
            listener = self._listeners.get(message.group)
            if listener is not None:
                listener.on_warden_message(message, fds)
            else:
                close_all(fds)
        if self._control.closed:
            self._lose()

    def look(self) -> None:
        """Notice a warden that has died while nobody waited for anything."""
        if not self.lost and self._process.poll() is not None:
            self._lose()

    def _lose(self) -> None:
        self._last_words = self.diagnosis()  # Groups may ask when the next start has closed this one.
        self.lost = True
        self._reactor.remove(self._control.fileno())
        for listener in list(self._listeners.values()):
            listener.on_warden_lost()

    def diagnosis(self) -> str:
        """What the warden wrote to its standard error: imports that complain, its own traceback."""
        if self.lost:
            return self._last_words
        size = os.fstat(self._diagnosis_fd).st_size
        text = os.pread(self._diagnosis_fd, MAX_DIAGNOSIS, max(0, size - MAX_DIAGNOSIS))
        return text.decode(errors="replace").strip()

    def ask_for_stacks(self) -> None:
        """Have it write where it is to its standard error."""
        linux.send_signal(self.pid, None, linux.STACKS_SIGNAL)

    def kill(self) -> None:
        """End a warden that is stuck in an import or stopped; workers that it has die with it."""
        self._process.kill()

    def kill_if_stopped(self) -> bool:
        """If somebody stopped it, it neither starts nor ends workers: another one must, and `kill_remains`."""
        stopped = processes.is_stopped(self.pid)
        if stopped:
            self.kill()
        return stopped

    def kill_remains(self, sessions: Collection[int], timeout: float) -> bool:
        """End what the workers of a dead warden, leaders of these sessions, have left; False if some did not end."""
        deadline = time.monotonic() + timeout
        while processes.kill_remains(sessions, self.token):
            if time.monotonic() > deadline:
                return False
            time.sleep(REMAINS_PAUSE_S)
        return True

    def close(self) -> None:
        """End the warden and everything below it."""
        self.dismiss()
        self.wait_for_end()

    def dismiss(self) -> None:
        """Have it end, without waiting for that; `wait_for_end` must be called later."""
        self.tell(messages.Quit())
        if not self.loaded:
            self.kill()  # Nobody waits for the end of an import that nobody needs.
        if not self.lost:
            self._reactor.remove(self._control.fileno())
        self.lost = True
        self._control.close()  # It ends at the hangup as well, should it have more to write than fits.

    def wait_for_end(self) -> None:
        """Kill it if it does not end by itself."""
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.kill_remains((), END_TIMEOUT_S)
        os.close(self._diagnosis_fd)
        os.close(self._lifeline_fd)


def absolute_sys_path() -> list[str]:
    """The driver's import path, for a process in another directory."""
    entries = [entry or "." for entry in sys.path]
    return [os.path.abspath(entry) if os.path.exists(entry) else entry for entry in entries]
