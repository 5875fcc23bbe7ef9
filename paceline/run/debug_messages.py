"""What a rank that is stopped in the debugger and the driver's console say to each other, over the group's channel."""

from __future__ import annotations

import msgspec


class DebugStopped(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A rank has stopped and asks for the console."""

    file: str
    line: int
    function: str
    error: str = ""
    """For a post-mortem, the exception that was raised."""
    without_source: list[str] = []
    """Files of the rank's stack whose text it cannot read: cells of a notebook, or files of another machine."""


class DebugOutput(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What the debugger prints."""

    text: str
    wants_line: bool = False
    """It waits for a line; the text ends with its prompt."""


class DebugLeft(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The rank continues, or ends."""

    is_stepping: bool = False
    """It will probably stop again soon."""
    quits: bool = False
    """The user wants the run to end."""


ForConsole = DebugStopped | DebugOutput | DebugLeft


class DebugTurn(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to DebugStopped: the rank has the console, or it continues without one."""

    granted: bool
    why_not: str = ""
    sources: dict[str, str] = {}
    """The text of files that the rank cannot read."""


class DebugLine(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What the user typed, with its newline; empty at the end of the input."""

    text: str


class Pause(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Another rank is in the debugger: wait in the next report() until `on` is False."""

    on: bool


FromConsole = DebugTurn | DebugLine | Pause
