"""``paceline logs``: what the workers of a run wrote, all ranks in the order of time."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime

from paceline.air.words import moment_text, printable
from paceline.cli.errors import USAGE, CommandError
from paceline.cli.output import add_format, csv_line, has_colors, note, write, write_json_line
from paceline.cli.places import add_path, live_place, run_at, shown_place
from paceline.run.display import last_overwrite
from paceline.view.logs import LogLine, follow, merged, ranks_of

DESCRIPTION = """\
Prints the output of the workers, with the rank in front of each line. With -f it continues until the run ends. As JSON,
each line is an object of its own.
"""

COLORS = ("36", "33", "35", "32", "34", "31")
"""Of ranks, in turn."""
_SPANS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h|d)")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_path(parser, "a run or trial")
    parser.add_argument("-f", "--follow", action="store_true", help="print what is written from now on, too")
    parser.add_argument("-n", "--tail", type=_count, metavar="N", help="only the last N lines of what is there")
    parser.add_argument("--rank", type=_rank, action="append", metavar="N", help="only this rank; may be repeated")
    parser.add_argument("--grep", type=_pattern, metavar="REGEX", help="only lines that match")
    parser.add_argument("--since", type=_moment, metavar="TIME", help="10m, 2h, 1d, 14:30 or 2026-01-31T14:30")
    parser.add_argument("-t", "--times", action="store_true", help="with the time in front of each line")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Print the lines."""
    path = live_place(given.path) or run_at(given.path, "read its logs").path
    ranks = ranks_of(path)
    missing = [rank for rank in given.rank or [] if rank not in ranks]
    if missing and not given.follow:
        there_are = f"there are logs of ranks {', '.join(map(str, ranks))}" if ranks else "there are no logs at all"
        raise CommandError(f"{shown_place(path)} has no log of rank {missing[0]}: {there_are}.", USAGE)
    if given.follow:
        lines: Iterable[LogLine] = follow(path, given.rank, grep=given.grep, since=given.since, last=given.tail)
    else:
        lines = merged(path, given.rank, grep=given.grep, since=given.since)
        lines = lines if given.tail is None else deque(lines, maxlen=given.tail)
    if given.format == "csv":
        write(csv_line(["rank", "time", "text"]))
    width = len(str(max(ranks, default=0)))
    is_empty = True
    for line in lines:
        is_empty = False
        if given.format == "json":
            write_json_line({"rank": line.rank, "time": line.time, "text": line.text})
        elif given.format == "csv":
            write(csv_line([line.rank, line.time, printable(line.text)]))
        else:
            write(_shown(line, width if len(ranks) > 1 or given.follow else 0, given.times))
        if given.follow:
            sys.stdout.flush()
    if is_empty:
        note(_why_nothing(given, path))
    return 0


def _why_nothing(given: argparse.Namespace, path: str) -> str:
    if given.tail != 0 and next(iter(merged(path)), None) is None:
        return f"The workers of {shown_place(path)} wrote nothing."
    return f"No line in the logs of {shown_place(path)} matches --rank, --grep, --since or --tail."


def _shown(line: LogLine, width: int, with_time: bool) -> str:
    text = printable(last_overwrite(line.text))
    prefix = f"rank {line.rank:>{width}} | " if width else ""
    if has_colors() and prefix:
        prefix = f"\x1b[{COLORS[line.rank % len(COLORS)]}m{prefix}\x1b[0m"
    moment = moment_text(line.time, "%H:%M:%S ") if line.time else " " * 9
    return f"{moment if with_time else ''}{prefix}{text}"


def _moment(text: str) -> float:
    """Seconds since the epoch, from a span before now or a time."""
    if re.fullmatch(rf"(?:{_SPAN.pattern})+", text):
        return time.time() - sum(float(amount) * _SPANS[unit] for amount, unit in _SPAN.findall(text))
    today = datetime.now().strftime("%Y-%m-%dT")
    for attempt in (text, today + text):
        try:
            return datetime.fromisoformat(attempt).timestamp()
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 10m, 2h, 1d, 14:30 or 2026-01-31T14:30")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def _rank(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)
