"""Workers in threads of the driver: for debuggers and fast tests, through the same loop and frames.

They share the driver's process, so directory and environment are set for everybody while they live, their output is
the driver's output, and what kills one of them kills the driver. Several of them each have a session of their own
(`air/rank_slot.py`), but no process group: the run rejects frameworks that need one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from paceline.air import session
from paceline.air.errors import EngineError
from paceline.air.rank_slot import rank_in_thread
from paceline.engine import protocol
from paceline.engine.base import Capabilities, Placement, WorkerGroup
from paceline.engine.channel_group import ChannelGroup, GroupMember, MemberState
from paceline.engine.frames import FrameSocket, socket_pair
from paceline.engine.local.usage import usages_of
from paceline.engine.places import VISIBLE_VARIABLE, WorkerPlace, drivers_node, lay_out, variables
from paceline.engine.reactor import Reactor, ReactorEngine
from paceline.engine.usage import Usage
from paceline.engine.worker_loop import Channel, WorkerLoop

IDLE_WAIT_S = 0.05
"""What a worker that only waits for its next call needs to end, even without any grace."""
INTERRUPT_WAIT_S = 1.0


class InlineGroup(ChannelGroup):
    """Workers in threads of the driver."""

    has_pulse = False
    shares_directory = True

    def __init__(self, placement: Placement, places: tuple[WorkerPlace, ...], reactor: Reactor) -> None:
        super().__init__(placement, places, reactor)
        self._threads: list[threading.Thread] = []
        self._channels: list[Channel] = []
        for place, request in zip(places, placement.workers, strict=True):
            ours, theirs = socket_pair()
            member = GroupMember(request, FrameSocket(ours, read_limit=protocol.WORKER_FRAME_LIMIT))
            self.attach(member)
            member.state = MemberState.IDLE
            frames = FrameSocket(theirs, send_limit=protocol.WORKER_FRAME_LIMIT)
            channel = Channel(frames, place.rank, self.world_size)
            name = f"paceline-rank-{place.rank}"
            self._channels.append(channel)
            self._threads.append(threading.Thread(target=self._serve, args=(channel,), name=name, daemon=True))
        self._surroundings = _Surroundings(placement, places)
        self._closed = False
        self._left = False
        self._session_before = session.current()

    def launch(self) -> None:
        try:
            _take_place(self)
            self._surroundings.enter()
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._closed = True
            for channel in self._channels:
                channel.close()
            self._leave()
            raise

    def _serve(self, channel: Channel) -> None:
        try:
            with rank_in_thread() if self.world_size > 1 else contextlib.nullcontext():
                WorkerLoop(channel).run()
        except (ConnectionError, SystemExit):
            return
        finally:
            channel.close()

    def on_hangup(self, member: GroupMember) -> None:
        member.gone = True
        self.fail(member, "engine", "the worker's thread ended")

    def stacks(self, timeout: float = 1.0) -> dict[int, str]:
        frames = sys._current_frames()
        found = {rank: frames.get(thread.ident or -1) for rank, thread in enumerate(self._threads)}
        return {rank: "".join(traceback.format_stack(frame)) for rank, frame in found.items() if frame is not None}

    def usage(self, timeout: float = 1.0) -> dict[int, Usage]:
        """Of the driver's whole process: what the libraries of a worker do in threads of their own counts too."""
        return usages_of({member.rank: os.getpid() for member in self.members if not member.gone})

    def execute(
        self,
        fn: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        timeout: float = 60.0,
    ) -> list[Any]:
        if self.first_lost() is not None:
            # Its thread is not listened to any more, but what it has left in this process can be put back from here.
            return [self._call_here(rank, fn, args) for rank in (range(self.world_size) if ranks is None else ranks)]
        return super().execute(fn, *args, ranks=ranks, timeout=timeout)

    def _call_here(self, rank: int, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        with session.called_by_driver(rank, self.world_size):
            return fn(*args)

    def processes(self) -> dict[int, int]:
        """None: whoever ends the processes of a group must not end the driver."""
        return {}

    def shutdown(self, grace: float = 0.0) -> list[str]:
        if self._closed or os.getpid() != self._pid:
            return []
        self._closed = True
        try:
            return self._end_threads(grace)
        finally:
            session.install(self._session_before)
            self._leave()

    def _end_threads(self, grace: float) -> list[str]:
        for member in self.members:
            self.post(member, protocol.EXIT, b"")
        for member, thread in self._still_alive(max(grace, IDLE_WAIT_S)):
            self.detach(member)
            member.frames.close()  # A task that waits for a message wakes up.
            _raise_in(thread)
        alive = [member.rank for member, _ in self._still_alive(INTERRUPT_WAIT_S)]
        return [f"rank {rank} is still running in its thread: a thread cannot be killed" for rank in alive]

    def _leave(self) -> None:
        for member in self.members:
            self.detach(member)
            member.gone = True
            member.frames.close()
        self.close_events()
        self._surroundings.leave()
        self._left = True

    @property
    def lives(self) -> bool:
        """Whether it still uses what the whole process shares."""
        return self._pid == os.getpid() and (not self._left or any(thread.is_alive() for thread in self._threads))

    def _still_alive(self, timeout: float) -> list[tuple[GroupMember, threading.Thread]]:
        """Wait for the threads, reading what they still send: they may wait for that. Those that did not end."""
        deadline = time.monotonic() + timeout
        while True:
            alive = [
                (member, thread)
                for member, thread in zip(self.members, self._threads, strict=True)
                if thread.is_alive()
            ]
            if not alive or time.monotonic() >= deadline:
                return alive
            self.reactor.run_once(0.001)
            alive[0][1].join(0.001)


class InlineEngine(ReactorEngine):
    name = "inline"
    capabilities = Capabilities(in_driver_process=True)

    def start_group(self, placement: Placement) -> WorkerGroup:
        if self._closed:
            raise EngineError("this engine was closed; choose a new one")
        node = drivers_node(self.resources()["GPU"])
        places = lay_out(placement, [node] * placement.world_size, os.environ)
        group = InlineGroup(placement, places, self.reactor)
        group.launch()
        self.groups.add(group)
        return group


_place_lock = threading.Lock()
_in_place: InlineGroup | None = None
"""The newest group, of whatever engine: session, directory and environment are the process's own."""


def _take_place(group: InlineGroup) -> None:
    global _in_place
    with _place_lock:
        if _in_place is not None and _in_place.lives:
            raise EngineError(
                "another worker of the inline engine still runs in this process, and their sessions and directories "
                "would mix. Run one after the other, or use engine='local'."
            )
        _in_place = group


class _Surroundings:
    """Directory and environment of the workers, which are the whole process's for that time: those of rank 0, but with
    the GPUs of all ranks."""

    def __init__(self, placement: Placement, places: tuple[WorkerPlace, ...]) -> None:
        self._cwd = placement.workers[0].cwd
        self._variables = {**variables(placement, places[0]), protocol.RUN_ID_VARIABLE: placement.run_id}
        if places[0].gpus is not None:
            gpus = dict.fromkeys(gpu for place in places for gpu in place.gpus or ())
            self._variables[VISIBLE_VARIABLE] = ",".join(gpus)
        self._cwd_before = ""
        self._variables_before: dict[str, str] = {}

    def enter(self) -> None:
        self._cwd_before = os.getcwd()
        self._variables_before = dict(os.environ)
        os.makedirs(self._cwd, exist_ok=True)
        os.chdir(self._cwd)
        os.environ.update(self._variables)

    def leave(self) -> None:
        """Also undoes what backends and the train function have set: other workers' settings end with their process."""
        if not self._cwd_before:
            return
        os.chdir(self._cwd_before)
        for name in os.environ.keys() - self._variables_before.keys():
            del os.environ[name]
        os.environ.update(self._variables_before)


def _raise_in(thread: threading.Thread) -> None:
    """Have SystemExit raised at the thread's next Python instruction; C code is not interrupted.

    SystemExit, because a thread that was just ending anyway ends by it without complaint.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
