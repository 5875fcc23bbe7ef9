"""One worker in a thread of the driver: for debuggers and fast tests, through the same loop and frames.

It shares the driver's process, so directory and environment are set for everybody while it
lives, its output is the driver's output, and what kills it kills the driver.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from paceline.air import session
from paceline.air.errors import ConfigError, EngineError
from paceline.engine import protocol
from paceline.engine.base import Capabilities, Placement, WorkerGroup
from paceline.engine.channel_group import ChannelGroup, GroupMember, MemberState
from paceline.engine.frames import FrameSocket, socket_pair
from paceline.engine.places import WorkerPlace, drivers_node, lay_out, variables
from paceline.engine.reactor import Reactor, ReactorEngine
from paceline.engine.worker_loop import Channel, WorkerLoop

IDLE_WAIT_S = 0.05
"""What a worker that only waits for its next call needs to end, even without any grace."""
INTERRUPT_WAIT_S = 1.0


class InlineGroup(ChannelGroup):
    """A group of one, in a thread."""

    has_pulse = False
    shares_directory = True

    def __init__(self, placement: Placement, place: WorkerPlace, reactor: Reactor) -> None:
        super().__init__(placement, (place,), reactor)
        ours, theirs = socket_pair()
        member = GroupMember(placement.workers[0], FrameSocket(ours, read_limit=protocol.WORKER_FRAME_LIMIT))
        self.attach(member)
        self._channel = Channel(FrameSocket(theirs, send_limit=protocol.WORKER_FRAME_LIMIT), place.rank, 1)
        self._surroundings = _Surroundings(placement, place)
        self._thread = threading.Thread(target=self._serve, name=f"paceline-rank-{place.rank}", daemon=True)
        self._closed = False
        self._left = False
        self._session_before = session.current()
        member.state = MemberState.IDLE

    def launch(self) -> None:
        try:
            _take_place(self)
            self._surroundings.enter()
            self._thread.start()
        except BaseException:
            self._closed = True
            self._channel.close()
            self._leave()
            raise

    def _serve(self) -> None:
        try:
            WorkerLoop(self._channel).run()
        except (ConnectionError, SystemExit):
            return
        finally:
            self._channel.close()

    def on_hangup(self, member: GroupMember) -> None:
        member.gone = True
        self.fail(member, "engine", "the worker's thread ended")

    def stacks(self, timeout: float = 1.0) -> dict[int, str]:
        frame = sys._current_frames().get(self._thread.ident or -1)
        return {} if frame is None else {self.members[0].rank: "".join(traceback.format_stack(frame))}

    def execute(
        self,
        fn: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        timeout: float = 60.0,
    ) -> list[Any]:
        if self.first_lost() is not None:
            # Its thread is not listened to any more, but what it has left in this process can be put back from here.
            with session.called_by_driver(0, 1):
                return [fn(*args)]
        return super().execute(fn, *args, ranks=ranks, timeout=timeout)

    def processes(self) -> dict[int, int]:
        """None: whoever ends the processes of a group must not end the driver."""
        return {}

    def shutdown(self, grace: float = 0.0) -> list[str]:
        if self._closed or os.getpid() != self._pid:
            return []
        self._closed = True
        try:
            return self._end_thread(grace)
        finally:
            session.install(self._session_before)
            self._leave()

    def _end_thread(self, grace: float) -> list[str]:
        member = self.members[0]
        self.post(member, protocol.EXIT, b"")
        self._join(max(grace, IDLE_WAIT_S))
        if self._thread.is_alive():
            self.detach(member)
            member.frames.close()  # A task that waits for a message wakes up.
            _raise_in(self._thread)
            self._join(INTERRUPT_WAIT_S)
        if self._thread.is_alive():
            return [f"rank {member.rank} runs on in its thread: a thread cannot be killed"]
        return []

    def _leave(self) -> None:
        member = self.members[0]
        self.detach(member)
        member.gone = True
        member.frames.close()
        self.close_events()
        self._surroundings.leave()
        self._left = True

    @property
    def lives(self) -> bool:
        """Whether it still uses what the whole process shares."""
        return self._pid == os.getpid() and (not self._left or self._thread.is_alive())

    def _join(self, timeout: float) -> None:
        """Wait for the thread, reading what it still sends: it may wait for that."""
        deadline = time.monotonic() + timeout
        while self._thread.is_alive() and time.monotonic() < deadline:
            self.reactor.run_once(0.001)
            self._thread.join(0.001)


class InlineEngine(ReactorEngine):
    name = "inline"
    capabilities = Capabilities(in_driver_process=True)

    def start_group(self, placement: Placement) -> WorkerGroup:
        if self._closed:
            raise EngineError("this engine was closed; choose a new one")
        if placement.world_size != 1:
            raise ConfigError(
                f"the inline engine runs one worker inside the driver, not {placement.world_size}. "
                f"Use engine='local' for more, or num_workers=1."
            )
        (place,) = lay_out(placement, [drivers_node(self.resources()["GPU"])], os.environ)
        group = InlineGroup(placement, place, self.reactor)
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
    """Directory and environment of the worker, which are the whole process's for that time."""

    def __init__(self, placement: Placement, place: WorkerPlace) -> None:
        self._cwd = placement.workers[0].cwd
        self._variables = {**variables(placement, place), protocol.RUN_ID_VARIABLE: placement.run_id}
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
