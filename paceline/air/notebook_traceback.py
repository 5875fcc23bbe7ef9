"""Errors as IPython shows them: with the user's own lines, and without our frames.

Of a failed training these are the lines on the rank that failed first; of other errors, those that led to our code.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from paceline.air.cells import cell_name, place_in_words, shell, source_of

if TYPE_CHECKING:
    from paceline.air.errors import TrainingFailedError, WorkerFailure

_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.*))?$')
_CHAINED = re.compile(r"^(The above exception was .*:|During handling of the above .*:)$", re.MULTILINE)
_CONTEXT = 2
"""Lines shown before and after the one that counts."""
_MOST_FRAMES = 6
_WIDTH = 75
_CODES = {"red": "31", "green": "32", "cyan": "36", "bold red": "1;31"}


@dataclass
class Frame:
    """One line of a traceback: where it is, and what the traceback says of it."""

    file: str
    line: int
    function: str
    text: list[str]


def rendered(error: TrainingFailedError) -> list[str]:
    """What IPython prints instead of a traceback."""
    lines = [styled("-" * _WIDTH, "red")]
    cause = error.root_cause
    if cause is not None:
        lines += _of_rank(cause)
    lines += [f"{styled('TrainingFailedError', 'red')}: {error.brief or error}"]
    if place := where_it_was_called(error):
        lines += ["", place]
    return lines


def without_our_end(error: BaseException) -> list[str]:
    """IPython's own traceback up to the user's last line: the message says what is wrong with it."""
    tracer = getattr(shell(), "InteractiveTB", None)
    if tracer is None:
        return traceback.format_exception(error)
    trace = _up_to_user(error.__traceback__) or error.__traceback__
    lines: list[str] = tracer.structured_traceback(type(error), error, trace)
    return lines


def _up_to_user(trace: TracebackType | None) -> TracebackType | None:
    """A copy that ends at the last frame which is not ours; None if all are."""
    if trace is None:
        return None
    rest = _up_to_user(trace.tb_next)
    if rest is None and _is_ours(trace.tb_frame):
        return None
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def styled(text: str, style: str) -> str:
    """In colour, unless the user has turned colours off in IPython."""
    if str(getattr(shell(), "colors", "")).lower() == "nocolor":
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def _of_rank(cause: WorkerFailure) -> list[str]:
    """The exception of a worker and what it came from; nothing if it was killed, or left a dump of its stacks."""
    *earlier, last = _CHAINED.split(cause.traceback)
    if not frames_of(last)[0]:
        return []
    name = (cause.exception_type or "").rpartition(".")[2] or cause.kind
    title = f"Traceback of rank {cause.rank} (most recent call last)"
    lines = [f"{styled(name, 'bold red')}{title:>{max(len(title) + 1, _WIDTH - len(name))}}"]
    for text, what_follows in zip(earlier[::2], earlier[1::2], strict=True):
        lines += [*_part_lines(text), what_follows, ""]
    return [*lines, *_part_lines(last)]


def _part_lines(text: str) -> list[str]:
    """One exception of a chain."""
    frames, end = frames_of(text)
    shown = frames if len(frames) <= _MOST_FRAMES else [*frames[:2], None, *frames[3 - _MOST_FRAMES :]]
    lines = []
    for frame in shown:
        if frame is None:
            lines += [f"    ... {len(frames) - _MOST_FRAMES + 1} more calls ...", ""]
        else:
            lines += [*_frame_lines(frame), ""]
    return [*lines, *(styled(line, "red") for line in end), ""]


def frames_of(text: str) -> tuple[list[Frame], list[str]]:
    """The frames of a traceback, and the lines of the exception after them."""
    frames: list[Frame] = []
    end: list[str] = []
    for line in text.strip("\n").split("\n"):
        if found := _FRAME.match(line):
            frames.append(Frame(found[1], int(found[2]), found[3] or "", []))
        elif frames and line.startswith("    "):
            frames[-1].text.append(line)
        elif frames:
            end.append(line)
    return frames, [line for line in end if line.strip()]


def _frame_lines(frame: Frame) -> list[str]:
    place = f"{styled(place_in_words(frame.file, frame.line), 'green')}"
    head = f"{place}, in {styled(frame.function, 'cyan')}" if frame.function else place
    source = source_of(frame.file)
    if not 0 < frame.line <= len(source) or not _is_same(source[frame.line - 1], frame.text):
        return [head, *frame.text]
    first, last = max(1, frame.line - _CONTEXT), min(len(source), frame.line + _CONTEXT)
    lines = []
    for number in range(first, last + 1):
        code = source[number - 1].rstrip("\n")
        if number == frame.line:
            lines.append(styled(f"----> {number} {code}", "green"))
        else:
            lines.append(f"{number:>{len(f'----> {frame.line}')}} {code}")
    return [head, *lines]


def _is_same(line: str, text: list[str]) -> bool:
    """The file may have changed since the worker imported it, or be another one on this machine."""
    return not text or line.strip() == text[0].strip()


def where_it_was_called(error: BaseException) -> str:
    """The innermost line of the user's own program in the driver."""
    trace = _up_to_user(error.__traceback__)
    if trace is None:
        return ""
    frame = traceback.extract_tb(trace)[-1]
    place = place_in_words(cell_name(frame.filename) or frame.filename, frame.lineno or 0)
    return f"Called in {place}: {frame.line}"


def _is_ours(frame: FrameType) -> bool:
    """Whether the code is this package's; that of generated methods is in no file."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == __name__.partition(".")[0]
