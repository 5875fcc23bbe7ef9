"""``paceline``: finds the command, runs it, and makes errors readable.

Exit codes: 0 done, 1 the command failed, 2 wrong usage or no such path, 3 something is damaged, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, NoReturn

import paceline
from paceline.air.errors import PacelineError, StorageError
from paceline.cli.errors import INTERRUPTED, USAGE, code_of

COMMANDS = {
    "ls": "list runs and searches",
    "show": "one run or search on one screen",
    "best": "the best trial, run or checkpoint by a metric",
    "diff": "compare the configurations and metrics of runs",
    "export": "write a run as CSV, Parquet or an HTML report",
    "logs": "what the workers of a run wrote, ordered by time",
    "stacks": "where every rank of a live run is now",
    "top": "the live runs of this machine",
    "stop": "stop a live run or search at its next report",
    "verify": "compare checkpoints with their hashes",
    "gc": "remove what killed runs left behind",
    "doctor": "look for problems of this machine and installation",
    "dash": "show runs and searches in a browser",
    "serve": "serve the model of a run or checkpoint over HTTP",
    "port": "change programs written for Ray Train, Tune or AIR",
    "completion": "print a script that completes commands in a shell",
}
"""Each is a module of this package, with DESCRIPTION, `add_options(parser)` and `run(given)`.

Only the module of the command that was asked for is imported.
"""

READING = frozenset(["ls", "show", "best", "diff", "export", "logs", "verify"])


class _Help(argparse.HelpFormatter):
    """Fits paragraphs to the terminal, and leaves indented lines as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from textwrap import fill

        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(each if each.startswith(" ") else fill(each, width) for each in paragraphs)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):  # argparse forgets that it indents them
            self._action_max_length += self._indent_increment


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the list of all options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Help, **settings})

    def error(self, message: str) -> NoReturn:
        complain(f"{message.rstrip('.')}. See {self.prog} --help.")
        raise SystemExit(USAGE)


def parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands. Without the name of a wanted one, all of them have their options."""
    command = Parser(prog="paceline", description="Training runs and their models.")
    command.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    commands = command.add_subparsers(title="commands", metavar="<command>", dest="command", required=True)
    for name, summary in COMMANDS.items():
        if wanted is None or name == wanted:
            module = import_module(f"paceline.cli.{name}")
            options = commands.add_parser(name, help=summary, description=module.DESCRIPTION)
            module.add_options(options)
            options.set_defaults(run=module.run)
        else:
            commands.add_parser(name, help=summary)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = next((word for word in words if not word.startswith("-")), "")
    if name and name not in COMMANDS:
        return _no_such_command(name)
    given, unknown = parser(name).parse_known_args(words)
    if unknown:  # argparse would name the help of all commands
        complain(f"unrecognized arguments: {' '.join(unknown)}. See paceline {name} --help.")
        raise SystemExit(USAGE)
    try:
        with _patience(name):
            code: int = given.run(given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads this has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 0
    except (PacelineError, ImportError, OSError) as error:
        complain(_sentence(error))
        return code_of(error)
    return code


def _patience(command: str) -> AbstractContextManager[None]:
    """Somebody waits for what only reads; what changes or serves something tries as long as a training does."""
    if command not in READING:
        return nullcontext()
    from paceline.storage.patience import short

    return short()


def _sentence(error: Exception) -> str:
    """An error of a store without its number, and with the place first."""
    if isinstance(error, StorageError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}."
    return str(error)


def complain(message: str) -> None:
    """One line for the user about what is wrong; names of files and runs cannot do anything to the terminal."""
    from paceline.air.words import printable

    text = " ".join(printable(message).split("\n")).encode("utf-8", "replace").decode()
    print(f"paceline: {text}", file=sys.stderr)


def _no_such_command(name: str) -> int:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, 1)
    complain(f"there is no command {name!r}{f', did you mean {close[0]}?' if close else '.'} See paceline --help.")
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
