"""The driver's side of debugging: ranks that stop get the user's terminal, one after the other.

While a rank has it, the display is suspended, the other ranks wait in their next report(), and nobody's time runs out:
`AtWork` asks `is_active`. `rank_debugger.py` is the rank's side.
"""

from __future__ import annotations

import linecache
import signal
import sys
import time
from collections.abc import Callable, Collection

from paceline.air import cells
from paceline.run.debug_messages import (
    DebugLeft,
    DebugLine,
    DebugStopped,
    DebugTurn,
    ForConsole,
    FromConsole,
    Pause,
)
from paceline.run.debug_terminal import INTERRUPTED, Seat, desk, find_seat
from paceline.run.decisions import StopRequest
from paceline.run.observers import Observers

STEP_S = 1.0
"""How long a rank that was told to take a step keeps its turn: it will probably stop again at once."""
TYPING_POLL_S = 0.03
"""How often it is looked whether the user has typed a line."""


class DebugConsole:
    """The debug console of one attempt."""

    def __init__(
        self, world_size: int, reply: Callable[[int, FromConsole], None], observers: Observers, stop: StopRequest
    ) -> None:
        self._world_size = world_size
        self._reply = reply
        self._observers = observers
        self._stop = stop
        self._waiting: dict[int, DebugStopped] = {}
        """Ranks that have stopped and have no turn yet, in order."""
        self._rank: int | None = None
        """The rank that has the console."""
        self._seat: Seat | None = None
        self._prompt: str | None = None
        """What the rank wrote before it began to wait for a line."""
        self._steps: tuple[int, float] | None = None
        """A rank that takes a step, and until when it keeps its turn."""
        self._had_post_mortem = False
        self._told_stop = False

    @property
    def is_active(self) -> bool:
        """A rank is in the debugger, or waits for it."""
        return self._rank is not None or bool(self._waiting)

    def received(self, rank: int, message: ForConsole) -> None:
        if isinstance(message, DebugStopped):
            self._waiting[rank] = message
        elif rank != self._rank or self._seat is None:
            return  # Its terminal is gone.
        elif isinstance(message, DebugLeft):
            self._leave(message)
        elif message.wants_line:
            text, newline, self._prompt = message.text.rpartition("\n")
            self._seat.write(text + newline)
        else:
            self._seat.write(message.text)

    def serve(self, gone: Collection[int]) -> None:
        """Give turns, and pass on what the user has typed. `gone` are ranks that have ended or failed."""
        for rank in self._waiting.keys() & gone:
            del self._waiting[rank]
        if self._rank in gone and self._seat is not None:
            self._seat.write(f"\nRank {self._rank} has ended.\n")
            self._leave(DebugLeft())
        if self._rank is None and self._waiting:
            self._give_turn()
        if self._seat is not None and self._stop.pending and not self._told_stop:
            self._told_stop = True
            self._seat.remark("A stop was requested: when you leave the debugger, the run stops at its next report.")
        if self._rank is not None and self._prompt is not None:
            self._pass_on_line(self._rank, self._prompt)

    def close(self) -> None:
        """The workers are gone."""
        self._waiting.clear()
        if self._rank is not None:
            self._rank = self._seat = self._prompt = None
            desk.give_back(self)
            self._observers.resume_display()

    # -- turns ----------------------------------------------------------------------------

    def _give_turn(self) -> None:
        rank = next(iter(self._waiting))
        if self._steps is not None and time.monotonic() < self._steps[1]:
            if self._steps[0] not in self._waiting:
                return
            rank = self._steps[0]
        stopped = self._waiting[rank]
        why_not = self._why_not(stopped)
        if why_not is not None:
            del self._waiting[rank]
            self._reply(rank, DebugTurn(granted=False, why_not=why_not))
        elif desk.take(self):
            del self._waiting[rank]
            self._open(rank, stopped)

    def _why_not(self, stopped: DebugStopped) -> str | None:
        if stopped.error and self._had_post_mortem:
            return "only the first rank that fails in an attempt opens the debugger."
        seat = find_seat()
        return seat if isinstance(seat, str) else None

    def _open(self, rank: int, stopped: DebugStopped) -> None:
        self._observers.suspend_display()
        seat = find_seat()
        assert not isinstance(seat, str)
        is_next_step = self._steps is not None and self._steps[0] == rank
        self._rank, self._seat, self._prompt, self._steps = rank, seat, None, None
        self._had_post_mortem = self._had_post_mortem or bool(stopped.error)
        if not is_next_step:
            seat.write(self._header(rank, stopped))
        self._pause_others(rank, on=True)
        self._reply(rank, DebugTurn(granted=True, sources=_sources(stopped.without_source)))

    def _header(self, rank: int, stopped: DebugStopped) -> str:
        place = f"{cells.place_in_words(cells.cell_name(stopped.file) or stopped.file, stopped.line)}"
        if stopped.error:
            first = f"rank {rank} failed at {place} in {stopped.function}(): {stopped.error}"
            how_on = "'q' leaves the debugger and lets the failure be handled as usual"
        else:
            first = f"rank {rank} stopped at {place} in {stopped.function}()"
            how_on = "'c' continues, 'q' ends the run"
        waiting = f" Waiting for the debugger: rank {', '.join(map(str, self._waiting))}." if self._waiting else ""
        others = " The other ranks wait in their next report()." if self._world_size > 1 else ""
        return f"\n{first}\nThis is pdb: {how_on}, 'h' shows help.{others}{waiting}\n"

    def _leave(self, left: DebugLeft) -> None:
        rank, self._rank = self._rank, None
        assert rank is not None
        self._seat = self._prompt = None
        self._steps = (rank, time.monotonic() + STEP_S) if left.is_stepping else None
        desk.give_back(self)
        self._pause_others(rank, on=False)
        self._observers.resume_display()
        if left.quits and not self._stop.pending:
            self._stop.asked_in_debugger = True
            self._stop.signal = signal.SIGINT

    def _pause_others(self, rank: int, *, on: bool) -> None:
        for other in range(self._world_size):
            if other != rank:
                self._reply(other, Pause(on))

    # -- lines ----------------------------------------------------------------------------

    def _pass_on_line(self, rank: int, prompt: str) -> None:
        assert self._seat is not None
        if desk.was_interrupted:
            desk.was_interrupted = False
            self._seat.remark(INTERRUPTED)
        desk.is_typing = True
        try:
            line = self._seat.line(prompt)
        except OSError:  # Nobody is there any more.
            line = "continue\n"
        if line is None:
            return
        desk.is_typing = False
        self._prompt = None
        if not line.endswith("\n"):  # Ctrl-D
            self._seat.write("\n")
        self._reply(rank, DebugLine(line))


def _sources(files: Collection[str]) -> dict[str, str]:
    """The texts of those files that are code of this program: its modules, and cells of the notebook."""
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    known = [file for file in files if file in loaded or cells.cell_name(file) is not None]
    return {file: text for file in known if (text := "".join(linecache.getlines(file)))}
