"""Changes of a text at byte positions, so that everything between them stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Edit:
    """Replaces bytes from `start` to `end` (the same: inserts)."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Mark:
    """A line that needs a person: advice, and where the statement is."""

    position: int
    advice: str


def apply(source: bytes, edits: Sequence[Edit]) -> bytes:
    """The text with all edits; those at one place in the order given."""
    parts, done = [], 0
    for edit in sorted(edits, key=lambda each: each.start):
        parts += [source[done : edit.start], edit.text.encode()]
        done = edit.end
    return b"".join([*parts, source[done:]])


def line_start(source: bytes, position: int) -> int:
    return max(source.rfind(b"\n", 0, position), source.rfind(b"\r", 0, position)) + 1


def indent_at(source: bytes, position: int) -> str:
    line = source[line_start(source, position) :]
    return line[: len(line) - len(line.lstrip(b" \t\f"))].decode()


def newline_of(source: bytes) -> str:
    """How lines end in this file, by its first one."""
    first = source.partition(b"\n")[0]
    return "\r\n" if first.endswith(b"\r") else "\n"


def line_number(source: bytes, position: int, edits: Sequence[Edit] = ()) -> int:
    """The line of a position, counted from 1; with edits, the line where it will be."""
    added = sum(
        edit.text.count("\n") - source.count(b"\n", edit.start, edit.end) for edit in edits if edit.end <= position
    )
    return source.count(b"\n", 0, position) + 1 + added
