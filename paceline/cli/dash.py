"""``paceline dash``: runs and searches in a browser."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec

from paceline.air.errors import PacelineError
from paceline.cli.errors import CommandError, code_of
from paceline.cli.places import place
from paceline.cli.server_options import add_server_options, in_options, log_to_terminal, token_of

DESCRIPTION = """\
Shows runs and searches in a browser: live and finished ones, local and on remote storage. Prints a link with a token;
the browser exchanges it for a cookie. The page only reads, except that it can ask a live run to stop, and for the
stacks of its ranks.

The token is read from --token-file or PACELINE_TOKEN; if there is neither, a new one is made.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", nargs="?", help="directory or URI of results, an experiment, a run or a search (default: all results)"
    )
    parser.add_argument("--port", type=int, help="0: any that is free (default: 8686, or another if that is in use)")
    parser.add_argument(
        "--open", action=argparse.BooleanOptionalAction, help="open it in a browser (default: if there is a desktop)"
    )
    parser.add_argument("--read-only", action="store_true", help="do not let the page stop runs, nor ask for stacks")
    add_server_options(parser)


def run(given: argparse.Namespace) -> int:
    """Show runs until a signal."""
    for name in ("starlette", "uvicorn", "httptools"):
        if find_spec(name) is None:
            raise ImportError(f"paceline dash needs {name}: pip install 'paceline[dash]'", name=name)
    from paceline.view import dash

    log_to_terminal()
    try:
        dash(
            place(given.path) if given.path else None,
            host=given.host,
            port=given.port,
            token=token_of(given),
            certfile=given.certfile,
            keyfile=given.keyfile,
            open_browser=_has_desktop() if given.open is None else given.open,
            read_only=given.read_only,
            allowed_hosts=given.allow_host,
            access_log=given.access_log,
        )
    except PacelineError as error:
        raise CommandError(in_options(str(error)), code_of(error)) from error
    return 0


def _has_desktop() -> bool:
    """On a machine that is used through SSH, a browser would open where nobody sees it, or in the terminal."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and "SSH_CONNECTION" not in os.environ
