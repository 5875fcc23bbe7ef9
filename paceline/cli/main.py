"""``paceline``: finds the command, runs it, and makes errors readable.

Exit codes: 0 done, 1 an error that the message explains, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import paceline
from paceline.air.errors import PacelineError
from paceline.cli import port, serve


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    command = argparse.ArgumentParser(prog="paceline", description="Training runs and their models.")
    command.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    commands = command.add_subparsers(title="commands", metavar="<command>", required=True)
    port.add_to(commands)
    serve.add_to(commands)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    given = parser().parse_args(arguments)
    try:
        code: int = given.run(given)
    except KeyboardInterrupt:
        return 130
    except (PacelineError, ImportError) as error:
        from paceline.run.display import printable

        print(f"paceline: {printable(str(error))}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
