"""The agent: a process on each machine of a cluster that starts workers for one driver and reports what became of them.

It runs nothing of the user's: workers are forked by wardens, as on the driver's own machine. It ends, and everything
below it, when the driver says so, hangs up or falls silent, or when whoever started it is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from paceline.air.errors import EngineError
from paceline.air.resources import usable_cores
from paceline.engine import protocol
from paceline.engine.frames import FrameSocket, close_all
from paceline.engine.local import linux
from paceline.engine.local import messages as warden_messages
from paceline.engine.local.crash_file import CrashFile, user_stacks, wait_until_written
from paceline.engine.local.warden_client import WardenClient
from paceline.engine.reactor import WRITE, Reactor
from paceline.engine.remote import messages
from paceline.engine.remote.line import AGENT, WORKER, Caller, dial

PULSE_S = 1.0
STACKS_S = 1.0
OUTPUT_BYTES = 64 * 1024
LENGTH = struct.Struct("<I")


def filesystem_id() -> str:
    """Processes with the same one see the same files and process ids."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return ":".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid"))])


class WorkerHere:
    """A worker of this machine."""

    def __init__(self, spawn: messages.SpawnWorker) -> None:
        self.spawn = spawn
        self.crash_file = CrashFile()
        self.output_fd, self.worker_output_fd = os.pipe()
        fcntl.fcntl(self.output_fd, fcntl.F_SETFL, os.O_NONBLOCK)
        self.folder = None if spawn.shares_files else tempfile.mkdtemp(prefix="paceline-worker-")
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.memory_kills_before = linux.out_of_memory_kills()

    @property
    def cwd(self) -> str:
        if self.folder is None:
            return self.spawn.cwd
        return os.path.join(self.folder, os.path.basename(self.spawn.cwd))

    def close(self) -> None:
        self.crash_file.close()
        close_all([fd for fd in (self.output_fd, self.pidfd) if fd is not None])
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class GroupHere:
    """The workers of one group on this machine, and the warden that forks them."""

    def __init__(self, agent: Agent, number: int, warden: WardenClient) -> None:
        self.agent = agent
        self.number = number
        self.warden = warden
        self.workers: dict[int, WorkerHere] = {}
        self.told_of_load_error = False
        warden.listen(number, self)

    def on_warden_message(self, message: warden_messages.FromWarden, fds: tuple[int, ...]) -> None:
        assert not isinstance(message, warden_messages.Loaded)
        if isinstance(message, warden_messages.GroupGone):
            self.agent.end_group(self)
            return
        worker = self.workers[message.rank]
        if isinstance(message, warden_messages.Spawned):
            worker.pid, worker.pidfd = message.pid, fds[0] if fds else None
            self.agent.tell(messages.Spawned(self.number, message.rank, message.pid))
        elif isinstance(message, warden_messages.SpawnFailed):
            self.agent.tell(messages.SpawnFailed(self.number, message.rank, message.error))
        else:
            self._on_exit(worker, message)

    def _on_exit(self, worker: WorkerHere, exited: warden_messages.Exited) -> None:
        while self.agent.forward_output(worker):
            pass
        self.agent.tell(
            messages.Exited(
                group=self.number,
                rank=exited.rank,
                status=exited.status,
                max_rss=exited.max_rss,
                time_ns=exited.time_ns,
                crash=worker.crash_file.read(),
                memory_limit=linux.memory_limit(),
                out_of_memory_kills=linux.out_of_memory_kills() - worker.memory_kills_before,
            )
        )

    def on_warden_lost(self) -> None:
        self.agent.tell(messages.WardenLost(self.number, self.warden.diagnosis()))

    def look_for_load_error(self) -> None:
        if self.warden.load_error is not None and not self.told_of_load_error:
            self.told_of_load_error = True
            self.agent.tell(messages.LoadFailed(self.number, self.warden.load_error))

    def stacks(self, rank: int) -> str:
        worker = self.workers.get(rank)
        if worker is None or worker.pid is None:
            return ""
        worker.crash_file.read()  # Whatever was written before is not the answer.
        linux.send_signal(worker.pid, worker.pidfd, linux.STACKS_SIGNAL)
        wait_until_written([worker.crash_file], STACKS_S)
        return user_stacks(worker.crash_file.read())


class Agent:
    """Serves one driver."""

    def __init__(self, settings: messages.AgentSettings, lifeline_fd: int) -> None:
        self._settings = settings
        self._reactor = Reactor()
        self._wardens: dict[tuple[str, ...], WardenClient] = {}
        self._groups: dict[int, GroupHere] = {}
        self._quit = False
        self._last_heard = time.monotonic()
        self._control = FrameSocket(dial(settings.address, settings.token, Caller(AGENT, settings.number)))
        self._reactor.add(self._control.fileno(), self._on_control)
        self._reactor.add(lifeline_fd, lambda _mask: self._on_hangup(lifeline_fd))

    def serve(self) -> None:
        facts = (socket.gethostname(), usable_cores(), filesystem_id(), os.getpid(), *messages.own_versions())
        self.tell(messages.NodeFacts(*facts))
        next_pulse = time.monotonic()
        while not self._quit:
            self._reactor.run_once(PULSE_S)
            with self._reactor.lock:
                for group in self._groups.values():
                    group.look_for_load_error()
                if time.monotonic() >= next_pulse:
                    self.tell(messages.Pulse(protocol.clocks()))
                    next_pulse = time.monotonic() + PULSE_S
            if time.monotonic() - self._last_heard > self._settings.silence_s:
                self._quit = True
        for warden in self._wardens.values():
            warden.close()
        for group in self._groups.values():
            for worker in group.workers.values():
                worker.close()

    def _on_hangup(self, lifeline_fd: int) -> None:
        self._reactor.remove(lifeline_fd)
        self._quit = True

    def tell(self, message: messages.FromAgent) -> None:
        with self._reactor.lock:
            if not self._control.closed:
                self._control.post(messages.CONTROL, messages.encode(message))
                self._reactor.watch_writable(self._control)

    def _on_control(self, mask: int) -> None:
        if mask & WRITE:
            self._control.flush()
            self._reactor.watch_writable(self._control)
        for _, body, _ in self._control.read():
            self._last_heard = time.monotonic()
            self._on_message(messages.decode_to_agent(body))
        if self._control.closed or self._control.broken:
            self._quit = True

    def _on_message(self, message: messages.ToAgent) -> None:
        if isinstance(message, messages.SpawnWorker):
            self._spawn(message)
        elif isinstance(message, messages.KillGroup):
            self._kill_group(message.group)
        elif isinstance(message, messages.ShowStacks):
            self._in_thread(lambda: self._show_stacks(message))
        elif isinstance(message, messages.Warm):
            self._warden(tuple(message.preload))
        elif isinstance(message, messages.Ping):
            self.tell(messages.Pulse(protocol.clocks()))
        else:
            self._quit = True

    def _in_thread(self, work: Callable[[], None]) -> None:
        """What takes a moment must not keep the agent from giving signs of life."""
        threading.Thread(target=work, daemon=True).start()

    def _show_stacks(self, asked: messages.ShowStacks) -> None:
        group = self._groups.get(asked.group)
        self.tell(messages.Stacks(asked.group, asked.rank, "" if group is None else group.stacks(asked.rank)))

    # Workers

    def _warden(self, preload: tuple[str, ...]) -> WardenClient:
        warden = self._wardens.get(preload)
        if warden is not None:
            warden.look()
        if warden is not None and (warden.lost or warden.load_error is not None):
            warden.close()
            warden = None
        if warden is None:
            warden = self._wardens[preload] = WardenClient(preload, self._reactor)
        return warden

    def _spawn(self, spawn: messages.SpawnWorker) -> None:
        group = self._groups.get(spawn.group)
        if group is None:
            warden = self._warden(() if spawn.fresh else tuple(spawn.preload))
            group = self._groups[spawn.group] = GroupHere(self, spawn.group, warden)
        worker = group.workers[spawn.rank] = WorkerHere(spawn)
        self._reactor.add(worker.output_fd, lambda _mask: self._on_output(worker))
        self._in_thread(lambda: self._connect_and_fork(group, worker))

    def _connect_and_fork(self, group: GroupHere, worker: WorkerHere) -> None:
        spawn = worker.spawn
        try:
            sock = dial(self._settings.address, self._settings.token, Caller(WORKER, spawn.group, spawn.rank))
        except (OSError, EngineError) as error:
            self.tell(messages.SpawnFailed(spawn.group, spawn.rank, f"it could not reach the driver: {error}"))
            return
        with sock, self._reactor.lock:
            fds = [sock.fileno(), worker.crash_file.fileno(), worker.worker_output_fd]
            group.warden.tell(self._request(spawn, worker, group.warden), fds)
            os.close(worker.worker_output_fd)

    def _request(self, spawn: messages.SpawnWorker, worker: WorkerHere, warden: WardenClient) -> warden_messages.Spawn:
        own = dict(os.environb)
        defaults = {name: value for name, value in spawn.defaults.items() if os.fsencode(name) not in own}
        wanted = warden_messages.with_variables(own, {protocol.RUN_ID_VARIABLE: spawn.run_id, **defaults, **spawn.env})
        changed, removed = warden_messages.difference(warden.environment, wanted)
        missing = [entry for entry in sys.path if entry not in spawn.sys_path]
        return warden_messages.Spawn(
            group=spawn.group,
            run_id=spawn.run_id,
            rank=spawn.rank,
            world_size=spawn.world_size,
            fresh=spawn.fresh,
            threads=spawn.threads,
            pool_threads=None if b"OMP_NUM_THREADS" in wanted else spawn.threads,
            thread_setters=tuple(spawn.thread_setters),
            pulse_s=spawn.pulse_s,
            surroundings=warden_messages.Surroundings(
                changed_variables=changed,
                removed_variables=removed,
                cwd=os.fsencode(worker.cwd),
                log_path=b"",
                sys_path=[os.fsencode(entry) for entry in [*spawn.sys_path, *missing]],
                argv=[os.fsencode(argument) for argument in spawn.argv],
                main_file=None if spawn.main_file is None else os.fsencode(spawn.main_file),
                umask=spawn.umask,
            ),
        )

    def _on_output(self, worker: WorkerHere) -> None:
        self.forward_output(worker)

    def forward_output(self, worker: WorkerHere) -> bool:
        """False if there was none."""
        try:
            data = os.read(worker.output_fd, OUTPUT_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._reactor.remove(worker.output_fd)
            return False
        self.tell(messages.Output(worker.spawn.group, worker.spawn.rank, data))
        return True

    # Ends

    def _kill_group(self, number: int) -> None:
        group = self._groups.get(number)
        if group is None:
            self.tell(messages.GroupGone(number))
        elif group.warden.lost:
            sessions = {worker.pid for worker in group.workers.values() if worker.pid is not None}
            self._in_thread(lambda: self._kill_remains(group, sessions))
        else:
            group.warden.tell(warden_messages.KillGroup(number))

    def _kill_remains(self, group: GroupHere, sessions: set[int]) -> None:
        group.warden.kill_remains(sessions, 10.0)
        with self._reactor.lock:
            self.end_group(group)

    def end_group(self, group: GroupHere) -> None:
        group.warden.forget(group.number)
        self._groups.pop(group.number, None)
        for worker in group.workers.values():
            while self.forward_output(worker):
                pass
            self._reactor.remove(worker.output_fd)
            worker.close()
        self.tell(messages.GroupGone(group.number))


def main() -> None:
    """Settings come over standard input, which stays open as long as whoever started this process lives."""
    (length,) = LENGTH.unpack(sys.stdin.buffer.read(LENGTH.size))
    settings = messages.decode_settings(sys.stdin.buffer.read(length))
    with contextlib.suppress(ConnectionError):
        Agent(settings, sys.stdin.fileno()).serve()


if __name__ == "__main__":
    main()
