"""Stand-ins for the nodes of a cluster, several in one process: they speak an agent's and its workers' side of the
protocol, and do nothing else. What is measured against them is the driver.

Started by `benchmarks.simulated_engine`, with Settings on standard input; each line that follows names a rank to end.
"""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from paceline.engine import protocol
from paceline.engine.frames import FrameSocket
from paceline.engine.remote import messages
from paceline.engine.remote.line import AGENT, WORKER, Caller, dial
from paceline.run.messages import Acknowledged, Answer, Finished, Report, SessionSetup, decode_setup, decode_to_worker
from paceline.run.messages import encode as encode_for_run

PULSE_S = 1.0
ROWS_AT_ONCE = 20
"""A worker sends so many, then the next one has its turn."""
TURNS_AT_ONCE = 100
"""So many have theirs before the driver is listened to again, and signs of life are given."""
DIALLING_AT_ONCE = 16
CORES = 8
NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


class Settings(msgspec.Struct, frozen=True):
    """What one process of stand-ins gets at its start."""

    address: tuple[str, int]
    token: bytes
    nodes: list[int]
    """The numbers of their agents."""
    reports: int
    """Of each worker."""
    pace_s: float
    """Between two reports of a worker; 0: as fast as the driver lets it."""
    survivors_wait: bool
    """In the first attempt workers do not return after their last report: one of them will die."""


decode_settings = msgspec.msgpack.Decoder(Settings).decode


class Loop:
    """Calls back for descriptors, at times, and whoever is eager to go on."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.eager: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._done_elsewhere: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK)
        self.selector.register(self._wakeup, selectors.EVENT_READ, self._on_wakeup)

    def at(self, moment: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (moment, next(self._numbers), callback))

    def from_thread(self, callback: Callable[[], None]) -> None:
        self._done_elsewhere.put(callback)
        os.eventfd_write(self._wakeup, 1)

    def _on_wakeup(self) -> None:
        os.eventfd_read(self._wakeup)
        while not self._done_elsewhere.empty():
            self._done_elsewhere.get()()

    def listen(self, frames: FrameSocket, callback: Callable[[], None]) -> None:
        self.selector.register(frames.fileno(), selectors.EVENT_READ, callback)

    def send(self, frames: FrameSocket, tag: int, body: bytes) -> None:
        if not frames.closed:
            frames.post(tag, body)
            if frames.unsent:
                self.eager.append(lambda: self._flush(frames))

    def _flush(self, frames: FrameSocket) -> None:
        if not frames.closed:
            frames.flush()
            if frames.unsent:
                self.at(time.monotonic() + 0.002, lambda: self._flush(frames))

    def hang_up(self, frames: FrameSocket) -> None:
        if not frames.closed or frames.fileno() >= 0:
            self.selector.unregister(frames.fileno())
            frames.close()

    def turn(self) -> None:
        wait = self._timers[0][0] - time.monotonic() if self._timers else 1.0
        for key, _ in self.selector.select(0.0 if self.eager else max(0.0, wait)):
            key.data()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        for _ in range(min(len(self.eager), TURNS_AT_ONCE)):
            self.eager.popleft()()


class StandInWorker:
    """What the driver sees of a worker whose train function only reports."""

    def __init__(self, node: StandInNode, spawn: messages.SpawnWorker, frames: FrameSocket) -> None:
        self.node = node
        self.spawn = spawn
        self.frames = frames
        self.is_there = True
        self._setup: SessionSetup | None = None
        self._index = 0
        self._acknowledged = 0
        self._waits_at = 0
        self._began = time.monotonic()
        self._is_eager = False
        self._loop = node.loop
        self._loop.listen(frames, self._on_frames)
        self.send(protocol.READY, protocol.clocks())
        self._beat()

    def send(self, tag: int, body: bytes) -> None:
        self._loop.send(self.frames, tag, body)

    def _beat(self) -> None:
        if self.is_there and self.spawn.heartbeat_timeout_s is not None:
            self.send(protocol.HEARTBEAT, protocol.clocks())
            self._loop.at(time.monotonic() + self.spawn.heartbeat_timeout_s / 5, self._beat)

    def _on_frames(self) -> None:
        for tag, body, _ in self.frames.read():
            if tag == protocol.PING:
                self.send(protocol.HEARTBEAT, protocol.clocks())
            elif tag == protocol.CALL:
                number = protocol.decode_call(body).number
                self.send(protocol.RETURNED, protocol.encode(protocol.Returned(number, NOTHING)))
            elif tag == protocol.RUN:
                self._run(decode_setup(body))
            elif tag == protocol.MESSAGE:
                self._on_answer(body)
            elif tag == protocol.EXIT:
                self.exit(0)
                return
        if self.frames.closed and self.is_there:
            self.exit(0)

    def _run(self, setup: SessionSetup) -> None:
        self._setup = setup
        self._index = self._acknowledged = setup.start_index
        self.send(protocol.LOADED, b"")
        self.node.tell(messages.Output(self.spawn.group, self.spawn.rank, b"the train function begins\n"))
        self._go_on()

    def _on_answer(self, body: bytes) -> None:
        message = decode_to_worker(body)
        if isinstance(message, Acknowledged):
            self._acknowledged = max(self._acknowledged, message.index)
        elif isinstance(message, Answer):
            self._waits_at = 0
            if message.stop:
                self._return(stopped=True)
                return
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_eager and self._setup is not None and self.is_there:
            self._is_eager = True
            self._loop.eager.append(self._report_some)

    def _report_some(self) -> None:
        self._is_eager = False
        setup, settings = self._setup, self.node.settings
        if setup is None or not self.is_there or self.frames.unsent:
            if self.frames.unsent and self.is_there:
                self._loop.at(time.monotonic() + 0.002, self._go_on)
            return
        for _ in range(1 if settings.pace_s else ROWS_AT_ONCE):
            if self._index >= settings.reports:
                if setup.attempt > 0 or not settings.survivors_wait:
                    self._return(stopped=False)
                return
            if self._waits_at or self._index - self._acknowledged >= setup.window:
                return
            self._report(setup)
        if settings.pace_s:
            self._loop.at(time.monotonic() + settings.pace_s, self._go_on)
        else:
            self._go_on()

    def _report(self, setup: SessionSetup) -> None:
        self._index += 1
        metrics = {"step": self._index, "loss": 1.0 / self._index, "accuracy": 0.5, "samples": self._index * 64}
        stamp = time.time() + setup.wall_offset_s
        report = Report(self._index, metrics, stamp, time.monotonic() - self._began, waits=setup.decides)
        self._waits_at = self._index if setup.decides else 0
        self.send(protocol.MESSAGE, encode_for_run(report))

    def _return(self, *, stopped: bool) -> None:
        assert self._setup is not None
        reports = self._index - self._setup.start_index
        self._setup = None
        self.send(protocol.MESSAGE, encode_for_run(Finished(reports, stopped)))
        self.send(protocol.ENDED, b"")

    def exit(self, status: int) -> None:
        """The process ends; `status` as wait() gives it."""
        self.is_there = False
        self._loop.hang_up(self.frames)
        group, rank, now = self.spawn.group, self.spawn.rank, time.monotonic_ns()
        self.node.tell(messages.Exited(group, rank, status, 50 << 20, now, "", None, 0))


class StandInNode:
    """What the driver sees of a machine with an agent."""

    def __init__(self, number: int, settings: Settings, loop: Loop, threads: ThreadPoolExecutor) -> None:
        self.settings = settings
        self.loop = loop
        self.has_ended = False
        self.workers: dict[tuple[int, int], StandInWorker] = {}
        self._killed: set[int] = set()
        """Groups whose late connections nobody wants any more."""
        self._threads = threads
        self._frames = FrameSocket(dial(settings.address, settings.token, Caller(AGENT, number)))
        self.loop.listen(self._frames, self._on_frames)
        self.tell(messages.NodeFacts(f"node-{number}", CORES, f"files-of-node-{number}", os.getpid()))
        self._pulse()

    def tell(self, message: messages.FromAgent) -> None:
        self.loop.send(self._frames, messages.CONTROL, messages.encode(message))

    def _pulse(self) -> None:
        if not self.has_ended:
            self.tell(messages.Pulse(protocol.clocks()))
            self.loop.at(time.monotonic() + PULSE_S, self._pulse)

    def _on_frames(self) -> None:
        for _, body, _ in self._frames.read():
            message = messages.decode_to_agent(body)
            if isinstance(message, messages.SpawnWorker):
                self._threads.submit(self._dial, message)
            elif isinstance(message, messages.KillGroup):
                self._kill(message.group)
            elif isinstance(message, messages.ShowStacks):
                texts = dict.fromkeys(message.ranks, "a stand-in")
                self.tell(messages.Stacks(message.group, message.number, texts))
            elif isinstance(message, messages.LookFor):
                self.tell(messages.Seen(message.path, b""))
            elif isinstance(message, messages.Ping):
                self.tell(messages.Pulse(protocol.clocks()))
            elif isinstance(message, messages.Quit):
                self.has_ended = True
        self.has_ended = self.has_ended or self._frames.closed

    def _dial(self, spawn: messages.SpawnWorker) -> None:
        sock = dial(self.settings.address, self.settings.token, Caller(WORKER, spawn.group, spawn.rank), timeout=60)
        self.loop.from_thread(lambda: self._connected(spawn, FrameSocket(sock)))

    def _connected(self, spawn: messages.SpawnWorker, frames: FrameSocket) -> None:
        if spawn.group in self._killed:
            frames.close()
            return
        self.workers[spawn.group, spawn.rank] = StandInWorker(self, spawn, frames)
        self.tell(messages.Spawned(spawn.group, spawn.rank, 100_000 + spawn.rank))

    def _kill(self, group: int) -> None:
        self._killed.add(group)
        for key in [key for key in self.workers if key[0] == group]:
            worker = self.workers.pop(key)
            if worker.is_there:
                worker.exit(signal.SIGKILL)
        self.tell(messages.GroupGone(group))


def main() -> None:
    settings = decode_settings(bytes.fromhex(sys.stdin.readline()))
    loop = Loop()
    with ThreadPoolExecutor(DIALLING_AT_ONCE) as threads:
        nodes = [StandInNode(number, settings, loop, threads) for number in settings.nodes]

        def on_line() -> None:
            line = sys.stdin.readline()
            if not line:  # Whoever started this is gone.
                os._exit(1)
            for node in nodes:
                for (_, rank), worker in list(node.workers.items()):
                    if rank == int(line) and worker.is_there:
                        worker.exit(signal.SIGKILL)

        loop.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, on_line)
        while not all(node.has_ended for node in nodes):
            loop.turn()


if __name__ == "__main__":
    main()
