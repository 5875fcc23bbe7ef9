"""The driver's handle on one warden: starts it, talks to it, ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Protocol

from paceline.engine.frames import FrameSocket, close_all, socket_pair
from paceline.engine.local import environment, linux, messages, processes
from paceline.engine.local.start_interpreter import boot_command, write_boot_config
from paceline.engine.reactor import WRITE, Reactor

END_TIMEOUT_S = 5.0
MAX_DIAGNOSIS = 16 * 1024


class Listener(Protocol):
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
        self._reactor = reactor
        self._listeners: dict[int, Listener] = {}
        self._last_words = ""
        self._diagnosis_fd = linux.anonymous_file("paceline-warden")
        self._process, self._control = self._launch()
        reactor.add(self._control.fileno(), self._on_control)

    def _launch(self) -> tuple[subprocess.Popen[bytes], FrameSocket]:
        ours, theirs = socket_pair()
        driver_fd = linux.open_pidfd(os.getpid())
        lifeline_fd, self._lifeline_fd = os.pipe()
        settings = messages.WardenSettings(theirs.fileno(), driver_fd, lifeline_fd, list(self.preload))
        config_fd = write_boot_config("paceline.engine.local.warden", absolute_sys_path(), messages.encode(settings))
        passed = [fd for fd in (theirs.fileno(), driver_fd, lifeline_fd, config_fd) if fd is not None]
        self.environment = environment.with_variables(environment.current(), {processes.WARDEN_VARIABLE: self.token})
        """What the warden, and so every worker, starts with."""
        try:
            process = subprocess.Popen(
                boot_command(config_fd),
                pass_fds=passed,
                start_new_session=True,
                cwd="/",
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._diagnosis_fd,
            )
        finally:
            theirs.close()
            os.close(config_fd)
            os.close(lifeline_fd)
            if driver_fd is not None:
                os.close(driver_fd)
        return process, FrameSocket(ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def listen(self, group: int, listener: Listener) -> None:
        self._listeners[group] = listener

    def forget(self, group: int) -> None:
        self._listeners.pop(group, None)

    def tell(self, message: messages.ToWarden, fds: Sequence[int] = ()) -> None:
        self._reactor.check_owner()
        with self._reactor.lock:
            if self.lost:
                return
            self._control.post(messages.CONTROL, messages.encode(message), fds)
            if self._control.unsent:
                self._reactor.watch_writable(self._control)

    def _on_control(self, mask: int) -> None:
        if mask & WRITE:
            self._control.flush()
            self._reactor.watch_writable(self._control)
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

    @property
    def is_stopped(self) -> bool:
        """Somebody sent it SIGSTOP: it does nothing until it is continued, if ever."""
        return processes.is_stopped(self.pid)

    def kill(self) -> None:
        """End a warden that is stuck in an import or stopped; workers that it has die with it."""
        self._process.kill()

    def close(self) -> None:
        """End the warden and everything below it."""
        self.tell(messages.Quit())
        if not self.loaded:
            self.kill()  # Nobody waits for the end of an import that nobody needs.
        if not self.lost:
            self._reactor.remove(self._control.fileno())
        self.lost = True
        self._control.close()  # It ends at the hangup as well, should it have more to write than fits.
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._diagnosis_fd)
        os.close(self._lifeline_fd)


def absolute_sys_path() -> list[str]:
    """The driver's import path, for a process in another directory."""
    entries = [entry or "." for entry in sys.path]
    return [os.path.abspath(entry) if os.path.exists(entry) else entry for entry in entries]
