"""``paceline port``: changes programs written for Ray so that they use paceline."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from paceline.cli.errors import USAGE, CommandError

DESCRIPTION = """\
Changes `ray` to `paceline` in scripts, notebooks and folders of them. Prints a diff; --write applies it. Comments,
strings and layout stay as they are. Code without a counterpart stays too: it gets a comment that says what to write
instead, and is listed at the end. Imports of RLlib stay. The exit code is 1 if a file could not be read or written, or
if --check found something to do.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a script, a notebook or a folder")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", action="store_true", help="change the files")
    how.add_argument("--check", action="store_true", help="exit with 1 if a file would change or needs work by hand")


def run(given: argparse.Namespace) -> int:
    """Port what was named; the exit code."""
    if find_spec("libcst") is None:
        raise ImportError("paceline port needs libcst: pip install 'paceline[port]'", name="libcst")
    from paceline.compat.port.files import CannotPortError, files_in, ported, write

    changed, notes, problems = 0, [], []
    files = [file for each in given.paths for file in files_in(each)]
    if not files:
        places = " or ".join(str(each) for each in given.paths)
        raise CommandError(f"There are no Python files or notebooks in {places}.", USAGE)
    for path in files:
        try:
            result = ported(path)
            if result.changed and given.write:
                write(result)
        except CannotPortError as error:
            problems.append(str(error))
            continue
        changed += result.changed
        notes += result.notes_after if given.write else result.notes
        if result.changed:
            print(f"ported {path}" if given.write else result.diff, end="\n" if given.write else "")
    _summarize(notes, problems)
    return int(bool(problems) or (given.check and bool(changed or notes)))


def _summarize(notes: list[str], problems: list[str]) -> None:
    if notes:
        print("\nWithout a counterpart, for you to change:")
        print(*(f"  {note}" for note in notes), sep="\n")
    sys.stdout.flush()
    for problem in problems:
        print(f"paceline: {problem}", file=sys.stderr)
