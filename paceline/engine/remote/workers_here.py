"""What an agent has for each worker and each group of workers on its machine."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from paceline.air.attachment import Arrivals, Attachment
from paceline.air.temporary import sweep
from paceline.engine import protocol
from paceline.engine.frames import FrameSocket, close_all, socket_pair
from paceline.engine.local import linux
from paceline.engine.local import messages as warden_messages
from paceline.engine.local.crash_file import CrashFile, user_stacks
from paceline.engine.local.warden_client import WardenClient
from paceline.engine.reactor import Reactor
from paceline.engine.remote import messages

IMPORT_STACKS_S = 0.1
OUTPUT_BYTES = 64 * 1024
OUTPUT_AHEAD_BYTES = 1 << 20
"""While so much waits to be sent, workers wait with their output."""
STOPPED_WARDEN_WAIT_S = 0.3
"""A warden ends a group in milliseconds; if it has not by then, somebody may have stopped it."""


class WorkerHere:
    """A worker of this machine."""

    def __init__(self, spawn: messages.SpawnWorker, folder: str | None) -> None:
        """`folder` is a directory of its own, if it does not share the driver's files."""
        self.spawn = spawn
        self._folder = folder
        self.is_closed = False
        self.crash_file = CrashFile()
        self.output_fd, self._output_end = os.pipe()
        os.set_blocking(self.output_fd, False)
        ours, self._handed_end = socket_pair()
        self.handing = FrameSocket(ours)
        """Where it is handed attachments."""
        self.trouble = ""
        """Why it has no process yet, as far as that is known."""
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.memory_kills_before = linux.out_of_memory_kills()

    @property
    def cwd(self) -> str:
        if self._folder is None:
            return self.spawn.cwd
        return os.path.join(self._folder, os.path.basename(self.spawn.cwd))

    def fork(self, warden: WardenClient, channel: socket.socket) -> None:
        """Have the warden fork it. Its ends of everything are closed here, so that its own end can be seen."""
        fds = [channel.fileno(), self.crash_file.fileno(), self._handed_end.fileno(), self._output_end]
        warden.tell(request_for(self, warden), fds)
        self._close_its_ends()

    def _close_its_ends(self) -> None:
        self._handed_end.close()
        if self._output_end >= 0:
            os.close(self._output_end)
            self._output_end = -1

    @property
    def unread_output(self) -> int:
        """How many bytes it has written that were not read yet."""
        return int(struct.unpack("i", fcntl.ioctl(self.output_fd, termios.FIONREAD, b"\0" * 4))[0])

    def close(self) -> None:
        self.is_closed = True
        self.crash_file.close()
        self.handing.close()
        self._close_its_ends()
        close_all([fd for fd in (self.output_fd, self.pidfd) if fd is not None])

    def remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def request_for(worker: WorkerHere, warden: WardenClient) -> warden_messages.Spawn:
    """What the warden is told of a worker. It finds the environment of this machine around itself."""
    spawn = worker.spawn
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
        pulse_s=None if spawn.heartbeat_timeout_s is None else spawn.heartbeat_timeout_s / 5,
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
        is_handed_attachments=True,
    )


class AttachmentsHere:
    """Those that the driver has sent, by their numbers: files in memory that all workers of this machine share."""

    def __init__(self) -> None:
        self._arrivals = Arrivals()
        self._count = itertools.count()
        self._by_number: dict[int, Attachment] = {}

    def __getitem__(self, number: int) -> Attachment:
        return self._by_number[number]

    def take_in(self, body: bytes, fds: tuple[int, ...]) -> None:
        """One frame that brings a part of one; or nothing, if nobody wants the rest any more."""
        if body or fds:
            self._arrivals.take_in(body, fds)
        else:
            self._arrivals.take_no_more()
        for attachment in self._arrivals.take(()):
            self._by_number[next(self._count)] = attachment

    def drop(self, number: int) -> None:
        """It is gone once no worker refers to it."""
        self._by_number.pop(number, None)


class OutputForwarder:
    """Sends what workers write to the driver, no faster than the driver takes it."""

    def __init__(self, control: FrameSocket, reactor: Reactor, tell: Callable[[messages.FromAgent], None]) -> None:
        self._control = control
        self._reactor = reactor
        self._tell = tell
        self._held_back: list[WorkerHere] = []
        """Their output is not read until the driver has taken what it was sent."""

    def listen(self, worker: WorkerHere) -> None:
        self._reactor.add(worker.output_fd, lambda _mask: self._on_output(worker))

    def _on_output(self, worker: WorkerHere) -> None:
        if self._control.unsent and self._control.unsent_bytes > OUTPUT_AHEAD_BYTES:
            self._reactor.remove(worker.output_fd)
            self._held_back.append(worker)
        else:
            self._forward(worker)

    def resume(self) -> None:
        """The driver has taken something."""
        if self._held_back and self._control.unsent_bytes < OUTPUT_AHEAD_BYTES / 2:
            held_back, self._held_back = self._held_back, []
            for worker in held_back:
                if not worker.is_closed:
                    self.listen(worker)

    def _forward(self, worker: WorkerHere) -> int:
        """Send what a worker wrote, at most OUTPUT_BYTES; returns how much it was."""
        try:
            data = os.read(worker.output_fd, OUTPUT_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._tell(messages.Output(worker.spawn.group, worker.spawn.rank, data))
        else:
            self._reactor.remove(worker.output_fd)
        return len(data)

    def forward_rest(self, worker: WorkerHere) -> None:
        """Everything that is in the pipe now. What the worker has started may keep writing."""
        rest = worker.unread_output
        while rest > 0 and (sent := self._forward(worker)):
            rest -= sent


class GroupKeeper(Protocol):
    """What a group here needs from the agent."""

    def tell(self, message: messages.FromAgent) -> None: ...

    def forward_rest(self, worker: WorkerHere) -> None: ...

    def end_group(self, group: GroupHere) -> None: ...

    def kill_remains(self, group: GroupHere) -> None: ...


class GroupHere:
    """The workers of one group on this machine, and the warden that forks them."""

    def __init__(self, keeper: GroupKeeper, first: messages.SpawnWorker, warden: WardenClient) -> None:
        self.number = first.group
        self.heartbeat_timeout_s = first.heartbeat_timeout_s
        self.warden = warden
        self.workers: dict[int, WorkerHere] = {}
        self._keeper = keeper
        self._told_of_load_error = False
        self._killed_at: float | None = None
        warden.listen(self.number, self)

    @property
    def is_ending(self) -> bool:
        return self._killed_at is not None

    # What the warden says

    def on_warden_message(self, message: warden_messages.FromWarden, fds: tuple[int, ...]) -> None:
        assert not isinstance(message, warden_messages.Loaded)
        if isinstance(message, warden_messages.GroupGone):
            self._keeper.end_group(self)
            return
        worker = self.workers[message.rank]
        if isinstance(message, warden_messages.Exited):
            self._on_exit(worker, message)
            return
        if isinstance(message, warden_messages.Spawned):
            worker.pid, worker.pidfd = message.pid, fds[0] if fds else None
        self._keeper.tell(message)

    def _on_exit(self, worker: WorkerHere, exited: warden_messages.Exited) -> None:
        self._keeper.forward_rest(worker)
        self._keeper.tell(
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
        self._keeper.tell(messages.WardenLost(self.number, self.warden.diagnosis()))
        if self.is_ending:
            self._keeper.kill_remains(self)

    def look(self, now: float) -> None:
        if self.warden.load_error is not None and not self._told_of_load_error:
            self._told_of_load_error = True
            self._keeper.tell(messages.LoadFailed(self.number, self.warden.load_error))
        if self._killed_at is not None and now - self._killed_at > STOPPED_WARDEN_WAIT_S and not self.warden.lost:
            self.warden.kill_if_stopped()

    # What the driver wants

    def kill(self, is_late: bool) -> None:
        """Kill all of it; GroupGone follows when nothing is left."""
        if self._killed_at is not None:
            return
        self._killed_at = time.monotonic()
        if self.warden.lost:
            self._keeper.kill_remains(self)
            return
        self.warden.tell(warden_messages.KillGroup(self.number))
        if not self.warden.loaded:  # It is still importing: when it gets to this group, the group ends at once.
            if is_late:
                self.warden.kill()
            self._keeper.end_group(self)

    def remove_folders(self) -> None:
        """That may take long: workers can leave much there."""
        for worker in self.workers.values():
            worker.remove_folder()
        sweep()  # Workers that were killed could not remove their temporary files.

    def pids_of(self, ranks: Sequence[int]) -> dict[int, int]:
        """Of those that have a process."""
        pids = {rank: self.workers[rank].pid for rank in ranks if rank in self.workers}
        return {rank: pid for rank, pid in pids.items() if pid is not None}

    def ask_for_stacks(self, ranks: Sequence[int]) -> dict[int, CrashFile]:
        """Where they will show them."""
        files = {}
        for rank in ranks:
            worker = self.workers.get(rank)
            if worker is not None and worker.pid is not None and not worker.is_closed:
                worker.crash_file.read()  # Whatever was written before is not the answer.
                files[rank] = worker.crash_file.from_here()
                linux.send_signal(worker.pid, worker.pidfd, linux.STACKS_SIGNAL)
        return files

    def take_stacks(self, files: dict[int, CrashFile]) -> dict[int, str]:
        """What they have shown; of those that have no process yet, what keeps them from it."""
        texts = {rank: worker.trouble for rank, worker in self.workers.items() if worker.pid is None}
        for rank, file in files.items():
            texts[rank] = user_stacks(file.read())
            if not self.workers[rank].is_closed:
                self.workers[rank].crash_file.skip_to(file)
            file.close()
        return texts


def where_imports_are(warden: WardenClient) -> str:
    """The stack of a warden that has not loaded everything yet."""
    warden.ask_for_stacks()
    time.sleep(IMPORT_STACKS_S)
    with contextlib.suppress(OSError):  # It was closed meanwhile.
        return f"still importing {', '.join(warden.preload)}:\n{warden.diagnosis()}"
    return ""
