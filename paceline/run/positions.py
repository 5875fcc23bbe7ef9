"""Where ranks are, read from the text of their stacks: the line of the user's code, and whether a rank waits there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.engine.failures import is_own_file

_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+|\?\?\?),? in (.+)')
_THREAD = re.compile(r"(Current thread|Thread) 0x")
_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python\d[^/]*/|^<(frozen|string|attrs generated|__array_function__)"
)
_DEBUGGER = re.compile(r"/(pydevd|debugpy|_pydev_bundle|_pydevd_bundle)(/|\.py$)|/(pdb|bdb)\.py$")
_STORING = re.compile(r"/paceline/run/(staging|rank_target|checkpoint_\w+)\.py$")
OWN_COLLECTIVES = (
    "paceline.train.collective:barrier",
    "paceline.train.collective:broadcast_from_rank_zero",
    "paceline.run.session:meet",
)
"""Ours, in the form of `Backend.collective_frames`."""


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def is_users(self) -> bool:
        return is_users_file(self.file)


@dataclass(frozen=True)
class Position:
    """Where one rank is."""

    frame: Frame | None
    """The innermost one of the user's code; without any, the innermost of all."""
    waits_in: str = ""
    """The function in which it waits for other ranks."""
    may_wait_in: str = ""
    """A function that computes, and waits for other ranks in between."""
    in_debugger: bool = False
    is_storing: bool = False
    """It writes a checkpoint for us."""
    called: str = field(default="", compare=False)
    """What the user's line has called, such as queue.get. It does not matter for whether a rank stands still."""

    def __str__(self) -> str:
        where = f" at {self.frame}" if self.frame is not None else ""
        if self.waits_in:
            return f"waits in {self.waits_in}{where}"
        if self.may_wait_in:
            return f"is in {self.may_wait_in}{where}"
        if self.frame is None:
            return "is in code without Python frames"
        called = f", which called {self.called}" if self.called else ""
        return f"is{where}, in {self.frame.function}{called}"


class KnownFrames:
    """The functions in which a rank waits for others, given as ``module:function``."""

    def __init__(self, collective: Iterable[str] = (), mixed: Iterable[str] = ()) -> None:
        self._collective = _by_function((*OWN_COLLECTIVES, *collective))
        self._mixed = _by_function(mixed)

    def position(self, stack: str) -> Position:
        """Where the rank is that shows this stack: all of its threads, or the traceback of an exception."""
        frames = _frames_of(stack)
        users = next((number for number, frame in enumerate(frames) if frame.is_users), None)
        inside = frames if users is None else frames[:users]  # What the user's line has called.
        return Position(
            frame=frames[users or 0] if frames else None,
            waits_in=_outermost(inside, self._collective),
            may_wait_in=_outermost(inside, self._mixed),
            in_debugger=any(_DEBUGGER.search(frame.file) for frame in _all_frames(stack)),
            is_storing=any(_STORING.search(frame.file) for frame in inside),
            called=_name_of(inside[-1]) if inside and users is not None else "",
        )


def _name_of(frame: Frame) -> str:
    """``queue.get``: the function by its module."""
    file = os.path.basename(frame.file)
    module = os.path.basename(os.path.dirname(frame.file)) if file == "__init__.py" else file.removesuffix(".py")
    return f"{module}.{frame.function}"


def is_users_file(path: str) -> bool:
    """Whether a file is the user's code, not Python's, ours or a library's. It may be on a machine with other paths."""
    return not is_own_file(path) and _LIBRARY.search(path) is None


def users_frame(line: str) -> bool:
    """Whether a line of a stack is a frame of the user's code."""
    frame = _FRAME.match(line)
    return frame is not None and is_users_file(frame[1])


def _by_function(known: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Name of a function to the ends of the files that it is in."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in known:
        module, _, function = entry.partition(":")
        path = "/" + module.replace(".", "/")
        found[function] = (*found.get(function, ()), f"{path}.py", f"{path}/__init__.py")
    return found


def _outermost(frames: Sequence[Frame], known: Mapping[str, tuple[str, ...]]) -> str:
    """The one that was called first: others are what it is made of."""
    names = [frame.function for frame in frames if frame.file.endswith(known.get(frame.function, ("\0",)))]
    return names[-1] if names else ""


def _frames_of(stack: str) -> list[Frame]:
    """Those of the thread that runs the user's code, innermost first."""
    if "most recent call first" not in stack:  # A traceback, or the stack of a thread of the driver.
        return _all_frames(stack)[::-1]
    threads: list[list[Frame]] = [[]]
    for line in stack.splitlines():
        if _THREAD.match(line):
            threads.append([])
        else:
            threads[-1] += _all_frames(line)
    theirs = [frames for frames in threads if frames]
    return next((frames for frames in theirs if any(frame.is_users for frame in frames)), theirs[0] if theirs else [])


def _all_frames(text: str) -> list[Frame]:
    found = (_FRAME.match(line) for line in text.splitlines())
    return [Frame(match[1], match[2], match[3].strip()) for match in found if match is not None]
