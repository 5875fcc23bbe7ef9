"""How commands print: a table for people, JSON and CSV for programs.

`--format table` is laid out for the terminal's width; in a pipe it is plain, and as wide as it needs. JSON and CSV have
every value in full. Nothing that a run's files say can act on the terminal.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.air.words import moment_text, printable, size_text, value_text
from paceline.cli.table import Cell, Column, Styled, cell, pair_lines, table_lines

FORMATS = ("table", "json", "csv")
GREEN, YELLOW, RED, DIM, BOLD = "32", "33", "31", "2", "1"
_STYLES = {
    "running": GREEN,
    "failed": RED,
    "killed": RED,
    "damaged": RED,
    "unreadable": RED,
    "interrupted": YELLOW,
    "pending": DIM,
}
_TERMINAL_CONTROLS = re.compile(r"[\x7f-\x9f]")


def add_format(parser: argparse.ArgumentParser) -> None:
    """The options that every command has for its output."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--format", choices=FORMATS, default="table", help="of what is printed (default: %(default)s)")
    how.add_argument("--json", action="store_const", const="json", dest="format", help="short for --format json")


def add_verbose(parser: argparse.ArgumentParser, help: str) -> None:
    """The option of commands that by default print only what matters."""
    parser.add_argument("-v", "--verbose", action="store_true", help=help)


def terminal_width() -> int | None:
    """None if the output does not go to a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def has_colors() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def write(text: str) -> None:
    """A line. Signs that the output cannot encode are replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")


def write_lines(lines: Iterable[str]) -> None:
    write("\n".join(lines))


def heading(text: str) -> None:
    """A line above a part of the output."""
    write(f"\x1b[{BOLD}m{text}\x1b[0m" if has_colors() else text)


def note(text: str) -> None:
    """A remark that is not part of the output."""
    sys.stdout.flush()
    print(f"paceline: {cell(text)}", file=sys.stderr)


def write_rows(
    form: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], shown: Sequence[Mapping[str, Cell]]
) -> None:
    """Rows in one of the formats. `rows` has the values, `shown` the cells of the table."""
    if form == "json":
        write_json(rows)
    elif form == "csv":
        write_csv(rows, [column.key for column in columns])
    elif shown:
        write_table(columns, shown)


def write_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]], indent: str = "") -> None:
    width = terminal_width()
    room = None if width is None else max(width - len(indent), 1)
    lines = table_lines(columns, rows, room, colors=has_colors())
    write_lines(f"{indent}{line}".rstrip() for line in lines)


def write_pairs(pairs: Iterable[tuple[str, Cell]], indent: str = "  ") -> None:
    """Names and values, below a heading."""
    width = terminal_width()
    lines = pair_lines(pairs, None if width is None else width - len(indent), colors=has_colors())
    for line in lines:
        write(indent + line)


def write_json(value: Any) -> None:
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, default=str)
    write(_TERMINAL_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def write_json_line(value: Any) -> None:
    """One value in one line, for output that has no end."""
    text = json.dumps(plain(value), ensure_ascii=False, default=str)
    write(_TERMINAL_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def plain(value: Any) -> Any:
    """What JSON can say: it has no NaN and no infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def csv_line(values: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


def write_csv(rows: Sequence[Mapping[str, Any]], first: Sequence[str] = ()) -> None:
    """Rows as CSV, nested values as columns like "a/b"; the columns that are named come first."""
    from paceline.view.flat import flat

    lines = [flat(row) for row in rows]
    names = dict.fromkeys(
        [*(name for name in first if any(name in row for row in lines)), *(k for row in lines for k in row)]
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([printable(name) for name in names])
    writer.writerows([[_csv_cell(row.get(name)) for name in names] for row in lines])
    write(text.getvalue().rstrip("\n"))


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(plain(value), default=str)
    return value


def painted(text: str, status: str) -> str:
    """Text in the color of a status, if there are colors."""
    return f"\x1b[{_STYLES[status]}m{text}\x1b[0m" if status in _STYLES and has_colors() else text


def status_cell(status: str, more: str = "") -> Cell:
    """A status in its style, with what is to be added to it."""
    return Styled(status + more, _STYLES[status]) if status in _STYLES else status + more


def number_text(value: Any) -> str:
    """A metric or a parameter, short."""
    return "" if value is None else cell(value_text(value))


def whole_text(value: Any) -> str:
    """The same in full."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return cell(json.dumps(plain(value), ensure_ascii=False, default=str) if isinstance(value, list | dict) else value)


def short_size(size: int | None) -> str:
    """Bytes, for a column of a table; nothing for none, or if that is not known."""
    return size_text(size).replace(" bytes", " B").replace(" byte", " B") if size else ""


def age_text(since: float | None, now: float | None = None) -> str:
    """How long ago a time was, in one unit."""
    return span_text((time.time() if now is None else now) - since) if since else ""


def span_text(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def time_text(since: float | None) -> str:
    """A time as the clock on the wall shows it."""
    return moment_text(since) if since else ""
