"""pdb in a rank, whose standard input and output are the driver's console."""

from __future__ import annotations

import io
import pdb
import sys
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from paceline.run.positions import is_users_file

if TYPE_CHECKING:
    from paceline.run.rank_debugger import RankDebugger

_OWN_MODULES = "paceline.*"


class _ConsoleStream(io.TextIOBase):
    """The debugger's standard input and output."""

    encoding = "utf-8"

    def __init__(self, debugger: RankDebugger) -> None:
        self._debugger = debugger
        self._written: list[str] = []

    def write(self, text: str) -> int:
        self._written.append(text)
        return len(text)

    def flush(self) -> None:
        """A line without an end may be a prompt, which goes with the wish for a line."""
        lines, newline, rest = self._take().rpartition("\n")
        self._written.append(rest)
        if newline:
            self._debugger.write(lines + newline)

    def _take(self) -> str:
        text = "".join(self._written)
        self._written.clear()
        return text

    def finish(self) -> None:
        """The debugger is left."""
        if text := self._take():
            self._debugger.write(text)

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        self._debugger.write(self._take(), wants_line=True)
        return self._debugger.read_line()


class RankPdb(pdb.Pdb):
    """Asks for the console each time it stops. It does not stop inside of paceline itself."""

    def __init__(self, debugger: RankDebugger, error: str = "") -> None:
        self._debugger = debugger
        self._error = error
        self._bottom: FrameType | None = None
        self._stream = _ConsoleStream(debugger)
        stream: Any = self._stream
        super().__init__(stdin=stream, stdout=stream, skip=[_OWN_MODULES], nosigint=True)
        self.use_rawinput = False

    def stop_at(self, frame: FrameType, bottom: FrameType | None) -> None:
        """Stop at the next line of the frame. Beyond `bottom` there is no code of the user's."""
        self._bottom = bottom
        self.set_trace(frame)  # The last thing here: what follows would be traced.

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        following = super().dispatch_return(frame, arg)
        if frame is self._bottom:
            sys.settrace(None)
            return None
        return following

    def examine(self, traceback: TracebackType) -> None:
        self.reset()
        self.interaction(None, traceback)

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        shown, line = self._chosen(traceback) if frame is None else (frame, frame.f_lineno)
        with self._debugger.turn(shown, line, self._error) as granted:
            if not granted:
                self.set_continue()
                return
            try:
                super().interaction(frame, traceback)
            finally:
                self._stream.finish()
                is_over = self.quitting or bool(self._error)
                self._debugger.left(
                    is_stepping=not is_over and self.stoplineno != -1, quits=is_over and not self._error
                )

    def get_stack(self, frame: FrameType | None, traceback: TracebackType | None) -> tuple[list[Any], int]:
        """A post-mortem begins at the user's line. What a library did below it is reached by `down`."""
        stack, index = super().get_stack(frame, traceback)
        if frame is None:
            users = [number for number, (each, _) in enumerate(stack) if is_users_file(each.f_code.co_filename)]
            index = users[-1] if users else index
        return stack, index

    def _chosen(self, traceback: TracebackType) -> tuple[FrameType, int]:
        stack, index = self.get_stack(None, traceback)
        shown, line = stack[index]
        return shown, line

    def do_interact(self, arg: str) -> None:
        """The rank has no terminal of its own for this."""
        self.error("interact is not available here: write statements behind a '!' instead")

    def do_run(self, arg: str) -> None:
        self.error("a run cannot be restarted from the debugger: 'q' ends it")

    do_restart = do_run
