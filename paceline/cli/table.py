"""Tables as plain lines. `rich` takes a millisecond for each row, which a list of a thousand runs cannot afford.

Nothing disappears in a narrow terminal: long cells are folded, and if that is not enough, each row becomes a block of
its own, with one line for each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.air.words import printable
from paceline.run.display import cell_width

GAP = 2
NARROWEST_FOLD = 14
"""Columns that a folded cell gets at least."""
_BREAK_AFTER = "/_-,;:="
_NARROWEST_ELLIPSIS = 4


@dataclass(frozen=True)
class Column:
    """One column: where its value is in a row, and how it is shown."""

    key: str
    title: str
    right: bool = False
    folds: bool = False
    """May take several lines."""


@dataclass(frozen=True)
class Styled:
    """Text that a terminal shows in a style."""

    text: str
    style: str
    """The number of an SGR sequence."""


Cell = str | Styled


def cell(text: object) -> str:
    """Any text in one line, without anything that a terminal would act on."""
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    return " ".join(printable(shown).split()) if not shown.isspace() else ""


def table_lines(
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Cell]],
    width: int | None,
    *,
    colors: bool = False,
    widest: dict[str, int] | None = None,
) -> Iterator[str]:
    """The lines of a table that is at most so many columns wide; None: as wide as it needs.

    A row may lack cells. A column that no row has a cell for is left out. A table that is drawn again and again passes
    the same `widest` each time: then its columns stay, and never become narrower.
    """
    if widest is None:
        columns = [column for column in columns if any(_text(row.get(column.key, "")) for row in rows)]
    if not columns or not rows:
        return
    widths = [
        max(cell_width(column.title), *(cell_width(_text(row.get(column.key, ""))) for row in rows))
        for column in columns
    ]
    if widest is not None:
        widths = [max(each, widest.get(column.key, 0)) for each, column in zip(widths, columns, strict=True)]
        widest.update({column.key: each for column, each in zip(columns, widths, strict=True)})
    if width is not None and not _fits(columns, widths, width):
        yield from _blocks(columns, rows, width, colors)
        return
    yield from _lines(columns, {column.key: column.title for column in columns}, widths, colors)
    for row in rows:
        yield from _lines(columns, row, widths, colors)


def _fits(columns: Sequence[Column], widths: list[int], width: int) -> bool:
    """Make the columns that may be folded narrower until the table fits; False if it does not."""
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    while excess > 0:
        room = [
            (widths[i] - NARROWEST_FOLD, i)
            for i, each in enumerate(columns)
            if each.folds and widths[i] > NARROWEST_FOLD
        ]
        if not room:
            return False
        _, widest = max(room)
        widths[widest] -= 1
        excess -= 1
    return True


def _lines(columns: Sequence[Column], row: Mapping[str, Cell], widths: Sequence[int], colors: bool) -> Iterator[str]:
    """One row; more than one line if a cell is folded."""
    cells = [row.get(column.key, "") for column in columns]
    texts = [_text(each) for each in cells]
    rest: list[str] = []
    if any(cell_width(text) > width for text, width in zip(texts, widths, strict=True)):
        folded = [list(folds(text, width)) for text, width in zip(texts, widths, strict=True)]
        texts = [parts[0] for parts in folded]
        for number in range(1, max(map(len, folded))):
            parts = [each[number] if number < len(each) else "" for each in folded]
            rest.append(_line(columns, cells, parts, widths, colors))
    yield _line(columns, cells, texts, widths, colors)
    yield from rest


def _line(
    columns: Sequence[Column], cells: Sequence[Cell], texts: Sequence[str], widths: Sequence[int], colors: bool
) -> str:
    parts = []
    for column, each, text, width in zip(columns, cells, texts, widths, strict=True):
        space = " " * (width - cell_width(text))
        shown = _painted(text, each, colors) if colors else text
        parts.append(space + shown if column.right else shown + space)
    return (" " * GAP).join(parts).rstrip()


def _blocks(columns: Sequence[Column], rows: Iterable[Mapping[str, Cell]], width: int, colors: bool) -> Iterator[str]:
    title_width = max(cell_width(column.title) for column in columns)
    for number, row in enumerate(rows):
        if number:
            yield ""
        pairs = [(column.title, row[column.key]) for column in columns if _text(row.get(column.key, ""))]
        yield from pair_lines(pairs, width, title_width, colors=colors)


def pair_lines(
    pairs: Iterable[tuple[str, Cell]], width: int | None, title_width: int = 0, *, colors: bool = False
) -> Iterator[str]:
    """Names and values, one pair in a line; long values are folded."""
    pairs = list(pairs)
    title_width = title_width or max((cell_width(title) for title, _ in pairs), default=0)
    if width is not None:
        title_width = min(title_width, width // 2)
    room = None if width is None else max(width - title_width - GAP, 1)
    for title, value in pairs:
        text = _text(value)
        parts = [text] if room is None else list(folds(text, room))
        names = [title] if width is None else list(folds(title, title_width))
        for number in range(max(len(parts), len(names))):
            name = names[number] if number < len(names) else ""
            part = parts[number] if number < len(parts) else ""
            yield f"{name}{' ' * (title_width + GAP - cell_width(name))}{_painted(part, value, colors)}".rstrip()


def folds(text: str, width: int) -> Iterator[str]:
    """The text in pieces of at most so many columns, cut at spaces.

    A word that is longer is cut after a sign such as a slash. If it has none, an ellipsis says that it continues.
    """
    while cell_width(text) > width:
        end = _longest(text, width)
        cut = end + 1 if text[end : end + 1] == " " else text.rfind(" ", 0, end) + 1
        if not text[:cut].strip():
            cut = max((text.rfind(sign, 0, end) + 1 for sign in _BREAK_AFTER), default=0)
        if cut:
            yield text[:cut].rstrip()
        elif width < _NARROWEST_ELLIPSIS:
            cut = end
            yield text[:cut]
        else:
            cut = _longest(text, width - 1)
            yield f"{text[:cut]}…"
        text = text[cut:].lstrip()
    yield text


def _longest(text: str, width: int) -> int:
    """How many characters fit; at least one."""
    if text.isascii():
        return max(1, width)
    taken = 0
    for number, sign in enumerate(text):
        taken += cell_width(sign)
        if taken > width:
            return max(1, number)
    return len(text)


def _text(each: Cell) -> str:
    return each.text if isinstance(each, Styled) else each


def _painted(text: str, each: Any, colors: bool) -> str:
    return f"\x1b[{each.style}m{text}\x1b[0m" if colors and text and isinstance(each, Styled) else text
