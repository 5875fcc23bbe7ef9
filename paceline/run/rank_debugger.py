"""The rank's side of debugging: breakpoint() and post-mortems, whose terminal is that of the driver.

`pdb` (`rank_pdb.py`) runs in the thread that stopped. What it prints and what the user types travel as messages over
the rank's channel (`debug_messages.py`); `debug_console.py` is the driver's side. A rank that stops first asks for the
console and waits for its turn.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from itertools import dropwhile
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from paceline.air import session as session_slot
from paceline.air.errors import SessionMisuseError
from paceline.run.debug_messages import DebugLeft, DebugLine, DebugOutput, DebugStopped, DebugTurn
from paceline.run.session import CONSOLE_POLL_S, Session

if TYPE_CHECKING:
    from paceline.run.rank_pdb import RankPdb

_VARIABLE = "PYTHONBREAKPOINT"
_TASK_MODULE = "paceline.run.worker"
"""The frames above it are those of the train function."""
_IN_SEARCH = (
    "breakpoint() does not work in the trials of a search: several trials run at the same time. Train this trial alone "
    "with its config (trainer.fit() with train_loop_config=..., or engine='inline'), or set PYTHONBREAKPOINT=0 to "
    "ignore breakpoints."
)


class RankDebugger:
    """The debugger of one session."""

    def __init__(self, session: Session, *, in_search: bool, post_mortem: bool) -> None:
        self._session = session
        self._in_search = in_search
        self._post_mortem = post_mortem
        self._pid = os.getpid()
        self._lock = threading.RLock()
        """One thread of a rank is in the debugger at a time."""
        self._is_refused = False
        """There is no terminal: it was said once, and breakpoints do nothing from then on."""

    def stop_at(self, frame: FrameType, header: str | None) -> None:
        """breakpoint() was called in this frame."""
        if self._in_search:
            raise SessionMisuseError(_IN_SEARCH)
        if os.getpid() != self._pid:
            _tell(
                f"breakpoint() was called in process {os.getpid()}, a child of the worker of rank "
                f"{self._session.world_rank}, and is ignored: the debugger works in the worker itself. "
                "For data loaders, set num_workers=0."
            )
        elif _waits_for_driver(frame):
            _tell("Ignoring breakpoint(): a signal handler called it while report() was waiting for the driver.")
        elif not self._is_refused:
            debugger = self._pdb()
            if header is not None:
                debugger.message(header)
            debugger.stop_at(frame, _users_first_frame(frame))  # The last thing here: what follows would be traced.

    def examine(self, error: BaseException) -> None:
        """The train function raised: open the debugger there, if the user wants that. Returns when it was left."""
        if not self._post_mortem or not isinstance(error, Exception) or type(error).__name__ == "BdbQuit":
            return
        traceback = _users_part(error.__traceback__)
        if traceback is None or self._in_search or os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError):  # The driver is gone, or wants this worker to end.
            self._pdb(f"{type(error).__name__}: {error}").examine(traceback)

    def _pdb(self, error: str = "") -> RankPdb:
        from paceline.run.rank_pdb import RankPdb  # Most runs need no debugger: it takes 20 ms to import.

        return RankPdb(self, error)

    @contextlib.contextmanager
    def turn(self, frame: FrameType, line: int, error: str) -> Iterator[bool]:
        """Wait for the console; False if there is none."""
        began = time.perf_counter()
        while not self._lock.acquire(timeout=CONSOLE_POLL_S):
            self._session.look_for_console()  # This thread may be the one that can: it may be inside of report().
        try:
            file = frame.f_code.co_filename
            self._session.tell_console(DebugStopped(file, line, frame.f_code.co_name, error, _without_source(frame)))
            turn = self._hear()
            while not isinstance(turn, DebugTurn):  # A line for a debugger that was left meanwhile.
                turn = self._hear()
            for name, text in turn.sources.items():
                linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            if not turn.granted and not error:
                self._is_refused = True
                _tell(self._how_to_attach(f"{file}:{line}", turn.why_not))
            yield turn.granted
        finally:
            self._lock.release()
            self._session.clock.stood_still(time.perf_counter() - began)

    def _how_to_attach(self, place: str, why_not: str) -> str:
        session, pid = self._session, os.getpid()
        return (
            f"breakpoint() at {place} on rank {session.world_rank} is ignored, and so are later ones: {why_not}\n"
            f"This rank is process {pid} on {socket.gethostname()}. To see where it is, use 'paceline stacks "
            f"{session.trial_dir}' or 'py-spy dump --pid {pid}'. To attach a debugger here, install remote-pdb and "
            f"start the run with {_VARIABLE}=remote_pdb.set_trace."
        )

    def left(self, *, is_stepping: bool, quits: bool) -> None:
        self._session.tell_console(DebugLeft(is_stepping, quits))

    def write(self, text: str, *, wants_line: bool = False) -> None:
        self._session.tell_console(DebugOutput(text.encode(errors="replace").decode(), wants_line))

    def read_line(self) -> str:
        line = self._hear()
        while not isinstance(line, DebugLine):
            line = self._hear()
        return line.text

    def _hear(self) -> DebugTurn | DebugLine:
        """Wait for what the driver's console says next."""
        while not self._session.from_console:
            self._session.look_for_console()
        return self._session.from_console.popleft()


def _users_part(traceback: TracebackType | None) -> TracebackType | None:
    """Without the frames of paceline at its beginning and at its end; None if there are no others."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    while entries and _is_own(entries[-1].tb_frame):
        entries.pop()
    users = list(dropwhile(lambda entry: _is_own(entry.tb_frame), entries))
    for entry in reversed(users):
        traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return traceback


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "paceline"


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _users_first_frame(frame: FrameType) -> FrameType | None:
    """The outermost frame of the train function; None in a thread that the user has started."""
    stack = list(_stack(frame))
    modules = [str(each.f_globals.get("__name__")) for each in stack]
    if _TASK_MODULE not in modules:
        return None
    users = [each for each in stack[: modules.index(_TASK_MODULE)] if not _is_own(each)]
    return users[-1] if users else None


def _waits_for_driver(frame: FrameType) -> bool:
    """Whether the frame interrupts a report() that reads messages: the debugger would read its answer."""
    waiting = (Session._wait_for_answer.__code__, Session._read_messages_blocking.__code__)
    return any(each.f_code in waiting for each in _stack(frame))


def _without_source(frame: FrameType) -> list[str]:
    files = {each.f_code.co_filename: each.f_globals for each in _stack(frame) if not _is_own(each)}
    return [file for file, names in files.items() if not linecache.getlines(file, names)]


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- sys.breakpointhook

_installed = 0
_install_lock = threading.Lock()


@contextlib.contextmanager
def breakpoints_stop_ranks() -> Iterator[None]:
    """In the block, breakpoint() in a rank opens in the driver's terminal; a hook of the user's own stays."""
    global _installed
    with _install_lock:
        _installed += 1
        if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get(_VARIABLE):
            sys.breakpointhook = _hook
    try:
        yield
    finally:
        with _install_lock:  # The ranks of the inline engine share the process, and leave it as it was.
            _installed -= 1
            if not _installed and sys.breakpointhook is _hook:
                sys.breakpointhook = sys.__breakpointhook__


def _hook(*arguments: Any, **keywords: Any) -> Any:
    """In a thread of the driver that is no rank, and where the user has set the variable since, all is as usual."""
    if os.environ.get(_VARIABLE):
        return sys.__breakpointhook__(*arguments, **keywords)
    debugger = getattr(session_slot.current(), "debugger", None)
    if isinstance(debugger, RankDebugger):
        return debugger.stop_at(sys._getframe(1), keywords.get("header"))
    import pdb

    return pdb.Pdb().set_trace(sys._getframe(1))
