"""``paceline stacks``: where every rank of a live run is now."""

from __future__ import annotations

import argparse
import linecache
import re

from paceline.air.words import printable
from paceline.cli.arguments import seconds
from paceline.cli.errors import USAGE, CommandError
from paceline.cli.output import add_format, heading, write, write_csv, write_json
from paceline.cli.places import add_path, live_at, shown_place
from paceline.run.positions import users_frame
from paceline.run.requests import request_stacks

DESCRIPTION = """\
Prints the Python stacks of all threads of every rank, also of ranks that hang. The workers write them themselves, so no
debugger and no special rights are needed. Training continues. Lines that begin with > are in your own code, with the
source line if the file is on this machine; the others are in Python, paceline or another library.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_path(parser, "a live run or trial")
    parser.add_argument("--rank", type=int, action="append", metavar="N", help="only this rank; may be repeated")
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="S", help="for the answer (default: %(default)s)"
    )
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Ask, and print the answer."""
    path = live_at(given.path).path
    stacks = request_stacks(path, timeout_s=given.timeout)
    missing = [rank for rank in given.rank or [] if rank not in stacks]
    if missing:
        there_are = f"there are ranks {', '.join(map(str, stacks))}" if stacks else "no rank has started yet"
        raise CommandError(f"{shown_place(path)} has no rank {missing[0]}: {there_are}.", USAGE)
    rows = [{"rank": rank, "stack": text} for rank, text in stacks.items() if not given.rank or rank in given.rank]
    if given.format == "json":
        write_json(rows)
    elif given.format == "csv":
        write_csv(rows)
    else:
        for number, row in enumerate(rows):
            if number:
                write("")
            heading(f"rank {row['rank']}")
            for line in printable(str(row["stack"])).rstrip().splitlines():
                own = users_frame(line)
                write(f"{'>' if own else ' '} {line}".rstrip())
                if own and (source := _source(line)):
                    write(f">     {source}")
    return 0


def _source(line: str) -> str:
    """The source line that a line of a stack names, as it is now; empty if it cannot be read."""
    named = re.match(r'\s*File "([^"]+)", line (\d+)', line)
    return printable(linecache.getline(named[1], int(named[2])).strip()) if named is not None else ""
