"""The agent: a process on each machine of a cluster that starts workers for one driver and reports what became of them.

It runs nothing of the user's: workers are forked by wardens, as on the driver's own machine. It ends, and everything
below it, when the driver says so, hangs up or cannot be reached any more, when whoever started it is gone, or when
another agent takes its place.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from paceline.air.errors import EngineError
from paceline.air.resources import usable_cores
from paceline.air.temporary import sweep
from paceline.engine import protocol
from paceline.engine.channel_group import STALL_S
from paceline.engine.frames import ATTACHED, SHARED, FrameSocket
from paceline.engine.local.crash_file import wait_until_written
from paceline.engine.local.engine import make_room_for_fds
from paceline.engine.local.usage import usages_of
from paceline.engine.local.warden_client import WardenClient
from paceline.engine.local.wardens import Wardens
from paceline.engine.reactor import WRITE, Reactor
from paceline.engine.remote import messages
from paceline.engine.remote.door import Door
from paceline.engine.remote.folders import AgentFolder
from paceline.engine.remote.line import AGENT, GREETING_S, MOST_DIALLING, WORKER, Caller, dial
from paceline.engine.remote.sharing import found_in
from paceline.engine.remote.takeover import is_wanted, take_place
from paceline.engine.remote.tls import TlsRelay
from paceline.engine.remote.workers_here import (
    AttachmentsHere,
    GroupHere,
    OutputForwarder,
    WorkerHere,
    where_imports_are,
)

PULSE_S = 1.0
"""How often it gives a sign of life; more often where heartbeat_timeout_s is short."""
REMAINS_WAIT_S = 10.0
FIRST_DIAL_S = 10.0
"""How long the driver may take to answer a worker. It may be stopped, or out of reach for a while: each further try has
twice the time, so that few connections wait at a driver that does not accept them."""
DIAL_AGAIN_S = 0.5
FDS_PER_WORKER = 8
LENGTH = struct.Struct("<I")


def filesystem_id() -> str:
    """Processes with the same one see the same files and process ids."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return ":".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid"))])


class Agent:
    """Serves one driver."""

    def __init__(self, settings: messages.AgentSettings, lifeline_fd: int) -> None:
        self._settings = settings
        self._reactor = Reactor()
        self._wardens = Wardens(self._reactor)
        self._groups: dict[int, GroupHere] = {}
        self._attachments = AttachmentsHere()
        self._folder: AgentFolder | None = None
        self._quit = False
        self._silent_s = 0.0
        """How long nothing came from the driver."""
        self._is_knocking = False
        self._door = Door(settings.address)
        self._dialling = threading.BoundedSemaphore(MOST_DIALLING)
        self._tls = None if settings.tls_variables is None else TlsRelay.from_variables(settings.tls_variables)
        self._place = take_place(settings)
        if self._place is not None:
            self._reactor.add(self._place.fileno(), lambda _mask: self._leave_if_wanted())
        self._reactor.add(lifeline_fd, lambda _mask: self._stop())
        self._control = FrameSocket(self._dial(Caller(AGENT, settings.number)))
        self._reactor.add(self._control.fileno(), self._on_control)
        self._output = OutputForwarder(self._control, self._reactor, self.tell)

    def _dial(self, caller: Caller, timeout: float = GREETING_S) -> socket.socket:
        return dial(self._settings.address, self._settings.token, caller, self._tls, timeout)

    def serve(self) -> None:
        """Until the driver has had enough; then nothing is left."""
        try:
            facts = (socket.gethostname(), usable_cores(), filesystem_id(), os.getpid(), *messages.own_versions())
            self.tell(messages.NodeFacts(*facts))
            last_look = last_pulse = time.monotonic()
            while not self._quit:
                self._reactor.run_once(self._pulse_s)
                with self._reactor.lock:
                    now = time.monotonic()
                    for group in list(self._groups.values()):
                        group.look(now)
                    self._dismiss(self._wardens.take_overdue())
                    if now - last_pulse >= self._pulse_s:
                        self._give_pulse()
                        last_pulse = now
                    self._silent_s += min(now - last_look, STALL_S)  # If this process was stopped, perhaps all were.
                    last_look = now
                    self._watch_driver()
        except Exception as error:  # Ours, or the driver sent nonsense: it should learn why the agent ends.
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}, line {where.lineno}"
            self.tell(messages.LastWords(f"{type(error).__name__}: {error} ({place})"))
            raise
        finally:
            self._end()

    def _end(self) -> None:
        wardens = self._wardens.take_all()
        for warden in wardens:
            warden.dismiss()  # All at once.
        for warden in wardens:
            warden.wait_for_end()
        for group in self._groups.values():
            for worker in group.workers.values():
                worker.close()
        if self._folder is not None:
            self._folder.close()
        sweep()

    def _stop(self) -> None:
        self._quit = True

    def _leave_if_wanted(self) -> None:
        assert self._place is not None
        self._quit = self._quit or is_wanted(self._place)

    # The driver

    @property
    def _heartbeat_s(self) -> float | None:
        """The shortest of the groups that are here."""
        limits = [group.heartbeat_timeout_s for group in list(self._groups.values())]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def _pulse_s(self) -> float:
        return min(PULSE_S, (self._heartbeat_s or PULSE_S) / 5)

    def _give_pulse(self) -> None:
        if not self._control.unsent:  # Else what is on its way shows it.
            self.tell(messages.Pulse(protocol.clocks()))

    def _watch_driver(self) -> None:
        """A driver that says nothing may be busy or stopped: its machine still answers whoever knocks. If nobody does,
        the driver has given this machine up by now, or is gone."""
        heartbeat = self._heartbeat_s
        limit = self._settings.silence_s if heartbeat is None else 2 * heartbeat
        if self._silent_s > 0.75 * limit and not self._is_knocking:
            self._is_knocking = True
            self._in_thread(lambda: self._knock(limit / 4))

    def _knock(self, timeout: float) -> None:
        try:
            self._door.knock(timeout)
        except OSError:
            self._quit = True
            self._reactor.wake()
        else:
            self._silent_s = 0.0
            self._is_knocking = False

    def tell(self, message: messages.FromAgent) -> None:
        with self._reactor.lock:
            if not self._control.closed:
                self._reactor.post(self._control, messages.CONTROL, messages.encode(message))

    def _on_control(self, mask: int) -> None:
        if mask & WRITE:
            self._reactor.flush(self._control)
            self._output.resume()
        for tag, body, fds in self._control.read():
            if tag == ATTACHED:
                self._attachments.take_in(body, fds)
            else:
                self._on_message(messages.decode_to_agent(body))
        if self._control.took_something:
            self._silent_s = 0.0
        if self._control.closed or self._control.broken:
            self._quit = True

    def _on_message(self, message: messages.ToAgent) -> None:
        if isinstance(message, messages.SpawnWorker):
            self._spawn(message)
        elif isinstance(message, messages.KillGroup):
            self._kill_group(message)
        elif isinstance(message, messages.ShowStacks):
            self._in_thread(lambda: self._show_stacks(message))
        elif isinstance(message, messages.ShowUsage):
            self._in_thread(lambda: self._show_usage(message))
        elif isinstance(message, messages.Warm):
            self._warden(tuple(message.preload))
        elif isinstance(message, messages.Lend):
            self._lend(message)
        elif isinstance(message, messages.Drop):
            self._attachments.drop(message.number)
        elif isinstance(message, messages.LookFor):
            self._in_thread(lambda: self.tell(messages.Seen(message.path, found_in(message.path))))
        elif isinstance(message, messages.Ping):
            self._give_pulse()
        else:
            self._quit = True

    def _in_thread(self, work: Callable[[], None]) -> None:
        """What takes a moment must not keep the agent from giving signs of life."""
        threading.Thread(target=work, daemon=True).start()

    def _show_stacks(self, asked: messages.ShowStacks) -> None:
        texts: dict[int, str] = {}
        with self._reactor.lock:
            group = self._groups.get(asked.group)
            files = {} if group is None else group.ask_for_stacks(asked.ranks)
        if group is not None and not group.warden.loaded:
            texts = dict.fromkeys(asked.ranks, where_imports_are(group.warden))
        elif group is not None:
            wait_until_written(list(files.values()), asked.wait_s)
            with self._reactor.lock:
                texts = group.take_stacks(files)
        self.tell(messages.Stacks(asked.group, asked.number, texts))

    def _show_usage(self, asked: messages.ShowUsage) -> None:
        with self._reactor.lock:
            group = self._groups.get(asked.group)
            pids = {} if group is None else group.pids_of(asked.ranks)
        self.tell(messages.Usages(asked.group, asked.number, usages_of(pids)))

    # Workers

    def _warden(self, preload: tuple[str, ...]) -> WardenClient:
        warden = self._wardens.get(preload)
        self._dismiss(self._wardens.take_surplus())
        return warden

    def _dismiss(self, wardens: Sequence[WardenClient]) -> None:
        """With the lock held, which nobody else may have to wait for."""
        for warden in wardens:
            warden.dismiss()
            self._in_thread(warden.wait_for_end)

    def _spawn(self, spawn: messages.SpawnWorker) -> None:
        try:
            make_room_for_fds(FDS_PER_WORKER)
            group = self._groups.get(spawn.group)
            if group is None:
                warden = self._warden(() if spawn.fresh else tuple(spawn.preload))
                group = self._groups[spawn.group] = GroupHere(self, spawn, warden)
            worker = group.workers[spawn.rank] = WorkerHere(spawn, self._folder_for(spawn))
        except (OSError, EngineError) as error:
            self.tell(messages.SpawnFailed(spawn.group, spawn.rank, str(error)))
            return
        self._output.listen(worker)
        self._reactor.add(worker.handing.fileno(), lambda mask: self._on_handing(worker, mask))
        self._in_thread(lambda: self._connect_and_fork(group, worker))

    def _folder_for(self, spawn: messages.SpawnWorker) -> str | None:
        if spawn.shares_files:
            return None
        if self._folder is None:
            self._folder = AgentFolder()
        return self._folder.new_folder()

    def _connect_and_fork(self, group: GroupHere, worker: WorkerHere) -> None:
        try:
            sock = self._connection_for(group, worker)
        except EngineError as error:
            self.tell(messages.SpawnFailed(group.number, worker.spawn.rank, str(error)))
            return
        if sock is None:
            return
        with sock, self._reactor.lock:
            if not group.is_ending and not worker.is_closed:
                worker.fork(group.warden, sock)

    def _connection_for(self, group: GroupHere, worker: WorkerHere) -> socket.socket | None:
        """None if the group is ended meanwhile. Whether the driver is gone is noticed elsewhere."""
        timeout = FIRST_DIAL_S
        while not group.is_ending and not worker.is_closed:
            try:
                with self._dialling:
                    return self._dial(Caller(WORKER, group.number, worker.spawn.rank), timeout)
            except OSError as error:
                worker.trouble = f"it could not reach the driver: {error}"
            time.sleep(DIAL_AGAIN_S)
            timeout *= 2
        return None

    def _lend(self, asked: messages.Lend) -> None:
        group = self._groups.get(asked.group)
        worker = None if group is None else group.workers.get(asked.rank)
        if worker is not None and not worker.is_closed:
            self._reactor.post(worker.handing, SHARED, b"", [self._attachments[asked.number].fileno()])

    def _on_handing(self, worker: WorkerHere, mask: int) -> None:
        if mask & WRITE:
            self._reactor.flush(worker.handing)
        worker.handing.read()
        if worker.handing.closed:  # It has ended.
            self._reactor.remove(worker.handing.fileno())

    def forward_rest(self, worker: WorkerHere) -> None:
        self._output.forward_rest(worker)

    # Ends

    def _kill_group(self, asked: messages.KillGroup) -> None:
        group = self._groups.get(asked.group)
        if group is None:
            self.tell(messages.GroupGone(asked.group))
        else:
            group.kill(asked.is_late)

    def kill_remains(self, group: GroupHere) -> None:
        """The warden is dead, and the workers with it; what they had started must be found."""
        sessions = {worker.pid for worker in group.workers.values() if worker.pid is not None}

        def kill() -> None:
            if group.warden.kill_remains(sessions, REMAINS_WAIT_S):  # Else the driver says so.
                with self._reactor.lock:
                    self.end_group(group)

        self._in_thread(kill)

    def end_group(self, group: GroupHere) -> None:
        if self._groups.pop(group.number, None) is None:
            return
        group.warden.forget(group.number)
        for worker in group.workers.values():
            self._output.forward_rest(worker)
            self._reactor.remove(worker.output_fd)
            self._reactor.remove(worker.handing.fileno())
            worker.close()
        self.tell(messages.GroupGone(group.number))
        self._in_thread(group.remove_folders)


def main() -> None:
    """Settings come over standard input, which stays open as long as whoever started this process lives."""
    head = sys.stdin.buffer.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return  # It is gone already.
    settings = messages.decode_settings(sys.stdin.buffer.read(*LENGTH.unpack(head)))
    try:
        agent = Agent(settings, sys.stdin.fileno())
    except (OSError, EngineError) as error:
        sys.exit(f"the agent for the driver at {settings.address[0]}:{settings.address[1]} cannot work: {error}")
    agent.serve()


if __name__ == "__main__":
    main()
