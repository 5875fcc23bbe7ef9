"""What runs on a host: an agent that starts workers when the driver says so, and tells what became of them.

Agent and workers each dial the driver. Nothing else joins a host and the driver: no file, no descriptor, no signal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import msgspec

from paceline.air.resources import usable_cores
from paceline.engine.frames import FrameSocket
from paceline.engine.local import linux
from paceline.engine.local.crash_file import CrashFile, user_stacks, wait_until_written
from paceline.engine.local.messages import GroupGone, KillGroup, Spawned
from paceline.engine.reactor import Reactor

HELLO = struct.Struct("<16sII")
"""The first bytes of a connection: the driver's token, a group and a rank (or AGENT and a host's number)."""
AGENT = 0
TAG = 1
PULSE_S = 0.2
LOG_PART_BYTES = 64 * 1024


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Start one worker."""

    group: int
    rank: int
    world_size: int
    directory: str
    """The name of its working directory, which is made in a private place of the host."""
    defaults: dict[str, str]
    variables: dict[str, str]
    sys_path: list[str]
    argv: list[str]
    threads: int | None
    pulse_s: float | None


class ShowStacks(msgspec.Struct, frozen=True, tag=True):
    group: int
    rank: int


class Output(msgspec.Struct, frozen=True, tag=True):
    """What a worker wrote to its standard streams. All of it comes before Exited and GroupGone."""

    group: int
    rank: int
    data: bytes


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A worker's process ended; `status` as wait() gives it, `max_rss` in bytes."""

    group: int
    rank: int
    status: int
    max_rss: int
    crash: str


class Stacks(msgspec.Struct, frozen=True, tag=True):
    group: int
    rank: int
    text: str


class Pulse(msgspec.Struct, frozen=True, tag=True):
    """The host is alive, and has so many cores."""

    cpus: int


ToAgent = Spawn | KillGroup | ShowStacks
FromAgent = Spawned | Output | Exited | Stacks | GroupGone | Pulse
encode = msgspec.msgpack.Encoder().encode
decode_to_agent = msgspec.msgpack.Decoder(ToAgent).decode
decode_from_agent = msgspec.msgpack.Decoder(FromAgent).decode


class Errand(msgspec.Struct, frozen=True):
    """What a new process on a host is told: where the driver is, by which token it knows its own, and what to do."""

    address: tuple[str, int]
    token: bytes
    number: int
    """Of the host, for an agent."""
    spawn: Spawn | None = None
    crash_fd: int = -1


decode_errand = msgspec.msgpack.Decoder(Errand).decode


def dial(errand: Errand, group: int, rank: int) -> socket.socket:
    """A connection to the driver, which knows by its first bytes whose it is."""
    sock = socket.create_connection(tuple(errand.address), timeout=30)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(HELLO.pack(errand.token, group, rank))
    return sock


class Worker:
    """A worker process of this host."""

    def __init__(self, spawn: Spawn, errand: Errand) -> None:
        self.spawn = spawn
        self.folder = tempfile.mkdtemp(prefix="worker-")
        directory = os.path.join(self.folder, spawn.directory)
        os.mkdir(directory)
        self.crash_file = CrashFile()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hosts.worker"],
            cwd=directory,
            env={**spawn.defaults, **os.environ, **spawn.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[self.crash_file.fileno()],
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(
            encode(msgspec.structs.replace(errand, spawn=spawn, crash_fd=self.crash_file.fileno()))
        )
        self.process.stdin.close()
        self.output_fd = self.process.stdout.fileno()
        fcntl.fcntl(self.output_fd, fcntl.F_SETFL, os.O_NONBLOCK)
        self.pidfd = os.pidfd_open(self.process.pid)
        self.has_ended = False

    def stacks(self) -> str:
        self.crash_file.read()
        os.kill(self.process.pid, linux.STACKS_SIGNAL)
        wait_until_written([self.crash_file], 1.0)
        return user_stacks(self.crash_file.read())

    def kill(self) -> None:
        """The worker and what is in its session."""
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == self.process.pid:
                    os.kill(pid, signal.SIGKILL)


class Agent:
    """Serves the driver until it hangs up."""

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._reactor = Reactor()
        self._control = FrameSocket(dial(errand, AGENT, errand.number))
        self._workers: dict[tuple[int, int], Worker] = {}
        self._reactor.add(self._control.fileno(), lambda _mask: self._on_control())

    def serve(self) -> None:
        next_pulse = time.monotonic()
        while not self._control.closed:
            self._reactor.run_once(PULSE_S)
            self._control.flush()
            if time.monotonic() >= next_pulse:
                self._tell(Pulse(usable_cores()))
                next_pulse = time.monotonic() + PULSE_S
        for worker in self._workers.values():
            worker.kill()

    def _tell(self, message: FromAgent) -> None:
        self._control.post(TAG, encode(message))

    def _on_control(self) -> None:
        for _tag, body, _fds in self._control.read():
            message = decode_to_agent(body)
            if isinstance(message, Spawn):
                self._spawn(message)
            elif isinstance(message, KillGroup):
                self._kill_group(message.group)
            else:
                worker = self._workers.get((message.group, message.rank))
                self._tell(Stacks(message.group, message.rank, "" if worker is None else worker.stacks()))

    def _spawn(self, spawn: Spawn) -> None:
        worker = self._workers[spawn.group, spawn.rank] = Worker(spawn, self._errand)
        self._tell(Spawned(spawn.group, spawn.rank, worker.process.pid))
        self._reactor.add(worker.output_fd, lambda _mask: self._forward_output(worker))
        self._reactor.add(worker.pidfd, lambda _mask: self._on_end(worker))

    def _forward_output(self, worker: Worker) -> bool:
        """False if there was none."""
        try:
            data = os.read(worker.output_fd, LOG_PART_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._reactor.remove(worker.output_fd)
            return False
        self._tell(Output(worker.spawn.group, worker.spawn.rank, data))
        return True

    def _on_end(self, worker: Worker) -> None:
        if worker.has_ended:
            return
        worker.has_ended = True
        self._reactor.remove(worker.pidfd)
        os.close(worker.pidfd)
        _, status, usage = os.wait4(worker.process.pid, 0)
        worker.process.returncode = os.waitstatus_to_exitcode(status)
        while self._forward_output(worker):
            pass
        crash = worker.crash_file.read()
        self._tell(Exited(worker.spawn.group, worker.spawn.rank, status, usage.ru_maxrss * 1024, crash))

    def _kill_group(self, group: int) -> None:
        for key in [key for key in self._workers if key[0] == group]:
            worker = self._workers.pop(key)
            worker.kill()
            self._on_end(worker)
            self._reactor.remove(worker.output_fd)
            worker.process.stdout.close()  # type: ignore[union-attr]
            worker.crash_file.close()
            shutil.rmtree(worker.folder, ignore_errors=True)
        self._tell(GroupGone(group))


if __name__ == "__main__":
    Agent(decode_errand(sys.stdin.buffer.read())).serve()
