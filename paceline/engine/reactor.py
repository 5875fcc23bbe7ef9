"""One wait over everything the driver listens to: channels, process ends, wardens; and engines that wait like that."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from paceline.air.errors import EngineError
from paceline.air.process import own_pid
from paceline.engine.base import Engine, Placement, WorkerGroup
from paceline.engine.frames import FrameSocket
from paceline.engine.places import drivers_resources, usable_gpus

if TYPE_CHECKING:
    from paceline.engine.channel_group import ChannelGroup

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

MAX_WAIT_S = 0.1
"""The longest single wait. Another thread may have read what this one waits for, timers
must be looked at, and a longer gap tells that the driver itself was stalled."""

Callback = Callable[[int], None]


class Reactor:
    """Calls back when a descriptor becomes readable or writable.

    Several threads may wait at once, each for a group of its own: one of them waits for the
    system and serves the events of all, the others wait for it and look when it has served
    some. `lock` guards everything that callbacks touch and is free during a wait.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._callbacks: dict[int, Callback] = {}
        self.lock = threading.RLock()
        self._server: int | None = None
        """The thread that waits for the system."""
        self._turn = threading.Lock()
        self._served = threading.Condition(self._turn)
        self._followers = 0
        self.rounds = 0
        """How often events were served."""
        self._timers: dict[Callable[[], None], tuple[float, float]] = {}
        """How often each is called, in seconds, and when next."""
        self._next_timer = math.inf
        self.woken = False
        """Somebody asked for the end of a wait; whoever waits for groups takes it back."""
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if hasattr(os, "eventfd") else None
        if self._wakeup is not None:
            self.add(self._wakeup, lambda _mask: self._take_wakeup())

    def check_owner(self) -> None:
        """Raise in a forked child: it shares the parent's channels, and even the list of what is waited for."""
        if own_pid() != self._pid:
            raise EngineError(
                f"the workers belong to process {self._pid}; its forked child {own_pid()} cannot use them. "
                "End the child with os._exit()."
            )

    def add(self, fd: int, callback: Callback) -> None:
        self.check_owner()
        self._callbacks[fd] = callback
        self._selector.register(fd, READ, callback)

    def remove(self, fd: int) -> None:
        if own_pid() == self._pid and self._callbacks.pop(fd, None) is not None:
            self._selector.unregister(fd)

    def every(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back about so often while somebody waits, with the lock held; until `cancel`."""
        with self.lock:
            self._timers[callback] = seconds, time.monotonic() + seconds
            self._next_timer = min(due for _, due in self._timers.values())

    def cancel(self, callback: Callable[[], None]) -> None:
        with self.lock:
            self._timers.pop(callback, None)

    def _serve_timers(self) -> None:
        with self.lock:
            now = time.monotonic()
            for callback, (seconds, due) in list(self._timers.items()):
                if now >= due and callback in self._timers:
                    self._timers[callback] = seconds, now + seconds
                    callback()
            self._next_timer = min((due for _, due in self._timers.values()), default=math.inf)

    def watch_writable(self, frames: FrameSocket) -> None:
        """Call back for writing exactly while something posted is still unsent."""
        self.check_owner()
        fd = frames.fileno()
        callback = self._callbacks.get(fd)
        if callback is not None:
            self._selector.modify(fd, READ | WRITE if frames.unsent else READ, callback)

    def post(self, frames: FrameSocket, tag: int, body: bytes, fds: Sequence[int] = ()) -> None:
        """Write a frame. What does not fit into the buffer is sent when the descriptor becomes writable."""
        frames.post(tag, body, fds)
        if frames.unsent:
            self.watch_writable(frames)

    def flush(self, frames: FrameSocket) -> None:
        """Write what there is room for now; for callbacks that were called for writing."""
        frames.flush()
        self.watch_writable(frames)

    def run_once(self, timeout: float, seen: int | None = None) -> None:
        """Wait up to `timeout` seconds (at most MAX_WAIT_S) and serve what is ready.

        `seen` is the `rounds` that the caller knew when it found that it has to wait: it does not wait if another
        thread has served something since.
        """
        self.check_owner()
        timeout = min(max(timeout, 0.0), MAX_WAIT_S)
        me = threading.get_ident()
        try:
            # An interrupt may come after any line here: who serves is known by name, so that it can be undone.
            with self._turn:
                if self._server is None:
                    self._server = me
            if self._server == me:
                self._serve(0.0 if seen is not None and seen != self.rounds else timeout)
            else:
                self._follow(timeout, seen)
        finally:
            if self._server == me:
                self._server = None
                if self._followers:
                    with self._turn:
                        self._served.notify_all()

    def _serve(self, timeout: float) -> None:
        ready = self._selector.select(timeout)
        if time.monotonic() >= self._next_timer:
            self._serve_timers()
        if not ready:
            return
        with self.lock:
            try:
                for key, mask in ready:
                    # An earlier callback of this round may have removed or replaced this one.
                    callback = self._callbacks.get(key.fd)
                    if callback is not None and callback is key.data:
                        callback(mask)
            finally:
                self.rounds += 1

    def _follow(self, timeout: float, seen: int | None) -> None:
        """Another thread waits for the system: wait until it has served something or leaves."""
        with self._turn:
            self._followers += 1
            try:
                if timeout > 0 and self._server is not None and seen in (None, self.rounds):
                    self._served.wait(timeout)
            finally:
                self._followers -= 1

    def wake(self) -> None:
        """End the wait of the thread that waits for the system; from any thread."""
        self.woken = True
        if self._wakeup is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):  # closed meanwhile
                os.eventfd_write(self._wakeup, 1)

    def _take_wakeup(self) -> None:
        assert self._wakeup is not None
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

    def close(self) -> None:
        self._callbacks.clear()
        self._selector.close()
        if self._wakeup is not None:
            os.close(self._wakeup)
            self._wakeup = None


class ReactorEngine(Engine):
    """An engine whose groups are ChannelGroups with one Reactor.

    Its resources are those of this machine, or as many as were declared.
    """

    def __init__(self, num_cpus: float | None = None, num_gpus: float | None = None) -> None:
        self._num_cpus = num_cpus
        self._num_gpus = num_gpus
        self._pid = os.getpid()
        self._closed = False
        self.reactor = Reactor()
        self.groups: weakref.WeakSet[WorkerGroup] = weakref.WeakSet()
        """Those that were started. The reactor keeps those that live."""

    def resources(self) -> dict[str, float]:
        return drivers_resources(self._num_cpus, self._num_gpus)

    def gpu_names(self) -> list[str]:
        return usable_gpus(self.resources()["GPU"])

    def wait(self, groups: Sequence[WorkerGroup], timeout: float | None) -> list[WorkerGroup]:
        own = cast("Sequence[ChannelGroup]", groups)
        reactor = self.reactor
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while True:
            seen = reactor.rounds
            is_due = reactor.woken or any(group.has_events for group in own)
            reactor.run_once(0.0 if is_due else deadline - time.monotonic(), seen)
            for group in own:
                group.look()
            ready: list[WorkerGroup] = [group for group in own if group.has_events]
            if ready or reactor.woken or time.monotonic() >= deadline:
                reactor.woken = False
                return ready

    def wake(self) -> None:
        self.reactor.wake()

    def check_usable(self, placement: Placement) -> None:
        """Raise where no group can be started from, and for a placement that none can be started for."""
        if os.getpid() != self._pid:
            raise EngineError("this engine belongs to the process that was forked; choose a new one here")
        if self._closed:
            raise EngineError("this engine was closed; choose a new one")
        if [request.rank for request in placement.workers] != list(range(placement.world_size)):
            raise ValueError("the workers of a placement must be in the order of their ranks, from 0 on")

    def close(self) -> None:
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        for group in list(self.groups):
            group.shutdown()
        self.release()
        self.reactor.close()

    def release(self) -> None:
        """Give back what the engine has besides groups and the reactor."""
