"""What a worker does between its start and its end: answer calls, run one task, exit.

The same loop serves a process of the local engine and the thread of the inline engine.
"""

from __future__ import annotations

import _thread
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from paceline.air import session
from paceline.air.attachment import Arrivals, Attachment
from paceline.air.errors import WorkerFailure
from paceline.air.faults import fault_point
from paceline.engine import protocol
from paceline.engine.base import Task
from paceline.engine.failures import describe_exception
from paceline.engine.frames import ATTACHED, SHARED, Frame, FrameSocket, close_all
from paceline.engine.serialization import MAIN_MARK, loads, new_main_module

UNPICKLE_HINT = (
    "The worker could not load the function. It needs every module that the function uses: "
    "install it where the worker runs, or put it into a directory of the driver's sys.path that the worker sees, too. "
    "On a cluster, paceline.init(runtime_env={'working_dir': '.'}) sends your modules to every node."
)


DRIVER_LOST_EXIT = 113
"""How a worker ends whose driver has hung up, or whose channel was closed under its feet."""


class ExitRequestedError(ConnectionError):
    """The driver wants this worker to end while its task still waits for a message."""


class Channel:
    """The worker's end of the line; one thread receives, any thread sends."""

    def __init__(self, frames: FrameSocket, rank: int, world_size: int, handed: FrameSocket | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.frames = frames
        self._handed = handed
        """Where attachments come in that another process has for all workers of this machine."""
        self._handed_over: deque[int] = deque()
        self._inbox: deque[Frame] = deque()
        self._arrivals = Arrivals()
        self._attachments: tuple[Attachment, ...] = ()
        self.exit_requested = False

    def send(self, body: bytes, attachments: Sequence[Attachment] = ()) -> None:
        self.frames.send_attached(protocol.MESSAGE, body, attachments)

    def receive(self, timeout: float | None = None) -> bytes | None:
        frame = self.next_frame(timeout)
        if frame is None:
            return None
        tag, body, fds = frame
        if tag != protocol.MESSAGE:
            self.exit_requested = True
            raise ExitRequestedError("the driver asked this worker to end")
        self.hold_attachments(fds)
        return body

    def hold_attachments(self, fds: tuple[int, ...]) -> None:
        """Keep those of the frame that was read last for whoever takes them; of the one before, nobody did."""
        self._attachments = self._arrivals.take(fds) if fds or self._arrivals.complete else ()

    def take_attachments(self) -> tuple[Attachment, ...]:
        attachments, self._attachments = self._attachments, ()
        return attachments

    def close(self) -> None:
        """Hang up; attachments that nobody took are gone."""
        self.frames.close()
        self._arrivals.close()
        self._attachments = ()
        while self._inbox:
            close_all(self._inbox.popleft()[2])
        if self._handed is not None:
            self._handed.close()
        close_all(self._handed_over)
        self._handed_over.clear()

    def next_frame(self, timeout: float | None = None) -> Frame | None:
        """The next frame of any kind, None once the time is up. Raises ConnectionError at the end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (frame := self._next_here()) is None:
            if self.frames.closed:
                raise ConnectionError("the driver is gone")
            self._inbox.extend(self.frames.read())
            if self._inbox or self.frames.closed:
                continue
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return None
            self.frames.wait_readable(remaining)
        return frame

    def _next_here(self) -> Frame | None:
        """The next frame that has come, except for those that are dealt with here."""
        while self._inbox:
            frame = self._inbox.popleft()
            if frame[0] == ATTACHED:  # For the frame behind it.
                self._arrivals.take_in(frame[1], frame[2])
            elif frame[0] == SHARED:
                self._arrivals.complete.append(self._take_shared())
            elif frame[0] == protocol.PING:
                self.frames.send(protocol.HEARTBEAT, protocol.clocks(frame[1]))
            else:
                return frame
        return None

    def _take_shared(self) -> Attachment:
        """The next one that is handed over: the driver has seen to it that it is on its way."""
        while not self._handed_over:
            if self._handed is None or self._handed.closed:
                raise ConnectionError("the agent is gone")
            self._handed.wait_readable(None)
            for _, _, fds in self._handed.read():
                self._handed_over.extend(fds)
        return Attachment.from_descriptor(self._handed_over.popleft())


@dataclass
class WorkerLoop:
    """Serves one worker until the driver says EXIT or goes away."""

    channel: Channel
    _task: bytes = b""
    _task_attachments: tuple[Attachment, ...] = ()

    def run(self) -> None:
        """Returns when the worker shall end; ConnectionError means the driver is gone."""
        while not self.channel.exit_requested:
            frame = self.channel.next_frame()
            assert frame is not None  # It waited without a limit.
            tag, body, fds = frame
            if tag == protocol.CALL:
                self._answer(protocol.decode_call(body))
            elif tag == protocol.TASK:
                self.channel.hold_attachments(fds)
                self._task, self._task_attachments = body, self.channel.take_attachments()
            elif tag == protocol.RUN:
                self._run_task(body)
            elif tag == protocol.EXIT:
                return
            else:  # A message for a task that is over.
                self.channel.hold_attachments(fds)
                self.channel.take_attachments()

    def _answer(self, call: protocol.Call) -> None:
        try:
            function, arguments = loads(call.payload)
            with session.called_by_driver(self.channel.rank, self.channel.world_size):
                value = _as_plain_data(function(*arguments), function)
            body = protocol.encode(protocol.Returned(call.number, msgspec.Raw(value)))
        except BaseException as error:
            failure = describe_exception(error, self.channel.rank, time.monotonic_ns())
            self.channel.frames.send(protocol.RAISED, protocol.encode(protocol.Raised(call.number, failure)))
        else:
            self.channel.frames.send(protocol.RETURNED, body)

    def _run_task(self, argument: bytes) -> None:
        failure = self._try_task(argument)
        flush_output()  # Whoever hears that the task is over can read all of its log.
        if failure is None:
            self.channel.frames.send(protocol.ENDED, b"")
        else:
            self.channel.frames.send(protocol.FAILED, protocol.encode(failure))

    def _try_task(self, argument: bytes) -> WorkerFailure | None:
        try:
            task: Task = loads(self._task, self._task_attachments)
            self._task_attachments = ()  # What the task holds on to is the task's business.
        except BaseException as error:
            now = time.monotonic_ns()
            return describe_exception(error, self.channel.rank, now, kind="startup", hint=UNPICKLE_HINT)
        self.channel.frames.send(protocol.LOADED, b"")
        try:
            task(self.channel, argument)
        except BaseException as error:
            return describe_exception(error, self.channel.rank, time.monotonic_ns())
        return None


def _as_plain_data(value: object, function: object) -> bytes:
    try:
        return protocol.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"what {name}() returned cannot be sent to the driver ({error}): return plain data, such as numbers, text, "
            "bytes, lists and dicts"
        ) from error


def serve_worker(sock: socket.socket, rank: int, world_size: int, pulse_s: float | None = None) -> NoReturn:
    """The whole work of a process that an engine has started as a worker: serve the driver at the other end of the
    socket, and end. With `pulse_s` it gives a sign of life as often; if the driver hangs up, it ends at once."""
    frames = FrameSocket(sock, send_limit=protocol.WORKER_FRAME_LIMIT)
    if not hasattr(sys.modules["__main__"], MAIN_MARK):
        sys.modules["__main__"] = new_main_module(None)
    fault_point("worker_start")
    try:
        start_pulse(frames, pulse_s, lambda: os._exit(DRIVER_LOST_EXIT))
        frames.send(protocol.READY, protocol.clocks())
        WorkerLoop(Channel(frames, rank, world_size)).run()
    except ConnectionError:
        os._exit(DRIVER_LOST_EXIT)
    flush_output()
    os._exit(0)


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # Closed by the user, or None: nothing is left to write.
            continue


def start_pulse(
    frames: FrameSocket, interval: float | None, on_hangup: Callable[[], None], driver_fd: int | None = None
) -> None:
    """Show every `interval` seconds that the interpreter still runs Python, and notice the driver's end.

    A Python thread on purpose: it stands still while something holds the interpreter's lock. `driver_fd` is the
    driver's pidfd: a child that the driver forked can keep the channel open.
    """

    def beat() -> None:
        poller = select.poll()
        poller.register(frames.sock, getattr(select, "POLLRDHUP", select.POLLHUP))
        if driver_fd is not None:
            poller.register(driver_fd, select.POLLIN)
        while not poller.poll(None if interval is None else interval * 1000):
            try:
                frames.send_unless_busy(protocol.HEARTBEAT, protocol.clocks())
            except OSError:
                break
        on_hangup()

    # Not through threading, which waits until the new thread has run: the worker has better things to do.
    _thread.start_new_thread(beat, ())
